#include "native/tf/crc32c.h"

#include <array>
#include <cstring>

#include "xla/tsl/lib/hash/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace millpond::tf {

#if defined(__x86_64__)

namespace {

// The instruction takes 8 bytes. It needs three cycles from operand to result, and one instruction
// can start in each cycle. So three adjacent ranges keep it busy, and their sums are combined
// afterwards.
constexpr size_t kLaneBytes = 1024;
constexpr size_t kStrideBytes = 3 * kLaneBytes;

constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's polynomial, lowest bit first

// Maps a sum to the sum after kLaneBytes zero bytes. The map is linear in the bits of the sum, so
// four tables hold it, one for each byte of the sum.
class LaneShift {
 public:
  LaneShift() {
    for (int bit = 0; bit < 32; ++bit) {
      const uint32_t shifted = AfterZeros(uint32_t{1} << bit);
      auto& table = tables_[bit / 8];
      const uint32_t power = uint32_t{1} << (bit % 8);
      // Fills the entries whose highest bit is this bit: each is the entry without the bit,
      // combined with it.
      for (uint32_t lower = 0; lower < power; ++lower) {
        table[power + lower] = table[lower] ^ shifted;
      }
    }
  }

  uint32_t operator()(uint32_t sum) const {
    return tables_[0][sum & 0xFF] ^ tables_[1][sum >> 8 & 0xFF] ^ tables_[2][sum >> 16 & 0xFF] ^
           tables_[3][sum >> 24];
  }

 private:
  static uint32_t AfterZeros(uint32_t sum) {
    for (size_t bit = 0; bit < kLaneBytes * 8; ++bit) {
      sum = sum >> 1 ^ (sum & 1 ? kPolynomial : 0);
    }
    return sum;
  }

  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

uint64_t Load(const char* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Extends `sum` over three lanes. The first lane continues `sum`. The other two lanes begin at 0,
// and are combined with it afterwards.
__attribute__((target("sse4.2"))) uint32_t ExtendStride(uint32_t sum, const char* bytes,
                                                        const LaneShift& shift) {
  uint64_t first = sum;
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t at = 0; at < kLaneBytes; at += sizeof(uint64_t)) {
    first = _mm_crc32_u64(first, Load(bytes + at));
    second = _mm_crc32_u64(second, Load(bytes + at + kLaneBytes));
    third = _mm_crc32_u64(third, Load(bytes + at + 2 * kLaneBytes));
  }
  const uint32_t both = shift(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return shift(both) ^ static_cast<uint32_t>(third);
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc32c, const char* bytes, size_t size) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction && size >= kStrideBytes) {
    static const LaneShift shift;
    uint32_t sum = ~crc32c;
    for (; size >= kStrideBytes; size -= kStrideBytes, bytes += kStrideBytes) {
      sum = ExtendStride(sum, bytes, shift);
    }
    crc32c = ~sum;
  }
  return tsl::crc32c::Extend(crc32c, bytes, size);
}

#else

uint32_t ExtendCrc32c(uint32_t crc32c, const char* bytes, size_t size) {
  return tsl::crc32c::Extend(crc32c, bytes, size);
}

#endif

}  // namespace millpond::tf
