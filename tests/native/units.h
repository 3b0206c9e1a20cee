#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond::testing {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000 * kMs;
// Above the time of any machine; a test that needs it has failed.
inline constexpr int64_t kForeverNs = 60 * kSecond;

}  // namespace millpond::testing
