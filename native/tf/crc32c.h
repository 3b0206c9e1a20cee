#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond::tf {

// Extends `crc32c`, that of some bytes, by the bytes that follow them, and returns that of all. The
// crc32c of no bytes is 0. The result is that of tsl::crc32c::Extend, which is used for short
// ranges and on processors without SSE4.2. That function recognizes older processors by name and
// takes the slow path on newer ones: 4 GB/s here, which is slower than reading from the page cache.
uint32_t ExtendCrc32c(uint32_t crc32c, const char* bytes, size_t size);

}  // namespace millpond::tf
