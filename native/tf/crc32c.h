#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond::tf {

// The crc32c of some bytes whose own is `crc32c` followed by these; of none it is 0. As
// tsl::crc32c::Extend, which it uses for short ranges and where the processor has no SSE4.2; that
// one knows the processors of its day by name and takes the slow way on newer ones (4 GB/s here,
// which is slower than reading from the page cache).
uint32_t ExtendCrc32c(uint32_t crc32c, const char* bytes, size_t size);

}  // namespace millpond::tf
