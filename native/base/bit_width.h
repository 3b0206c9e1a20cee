#pragma once

#include <cstdint>

namespace millpond::base {

// Returns the number of bits of `value`: 0 for 0, else the i with 2^(i-1) <= value < 2^i.
inline int BitWidth(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

}  // namespace millpond::base
