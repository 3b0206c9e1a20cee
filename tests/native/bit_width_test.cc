#include "native/base/bit_width.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millpond::base {
namespace {

TEST(BitWidth, OfZeroIsZero) { EXPECT_EQ(BitWidth(0), 0); }

TEST(BitWidth, GrowsByOneAtEachPowerOfTwo) {
  for (int i = 0; i < 64; ++i) {
    const uint64_t power = uint64_t{1} << static_cast<unsigned>(i);
    EXPECT_EQ(BitWidth(power), i + 1);
    EXPECT_EQ(BitWidth(power - 1), i);
  }
  EXPECT_EQ(BitWidth(UINT64_MAX), 64);
}

}  // namespace
}  // namespace millpond::base
