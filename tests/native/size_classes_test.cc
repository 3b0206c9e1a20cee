#include "native/memory/size_classes.h"

#include <gtest/gtest.h>

#include <vector>

#include "native/memory/slab.h"

namespace millpond::memory {
namespace {

// Two bins, of 64 blocks of 64 bytes in a page and of 4 blocks of 5,120 in five.
SizeClasses TwoBins(size_t large_pad_bytes) {
  return SizeClasses({{64, kPageBytes, 64}, {5120, 5 * kPageBytes, 4}}, large_pad_bytes);
}

TEST(SizeClasses, SmallBlocksShareExtentsAndLargeOnesHaveTheirOwn) {
  const SizeClasses classes = TwoBins(kPageBytes);
  EXPECT_EQ(classes.ExtentBytes(64), kPageBytes);
  EXPECT_EQ(classes.ExtentBytes(5120), 5 * kPageBytes);
  EXPECT_EQ(classes.ExtentBytes(16'384), 5 * kPageBytes);
}

TEST(SizeClasses, LargeBlocksHaveNoPadIfJemallocLacksIt) {
  EXPECT_EQ(TwoBins(0).ExtentBytes(16'384), 4 * kPageBytes);
}

TEST(SizeClasses, AllExtentsOfManyBlocksAreCountedWholeAndOnce) {
  const SizeClasses classes = TwoBins(kPageBytes);
  EXPECT_EQ(classes.ExtentBytesOfAll({}), 0);
  EXPECT_EQ(classes.ExtentBytesOfAll(std::vector<size_t>(64, 64)), kPageBytes);
  EXPECT_EQ(classes.ExtentBytesOfAll(std::vector<size_t>(65, 64)), 2 * kPageBytes);
  EXPECT_EQ(classes.ExtentBytesOfAll({5120, 64, 16'384, 64, 16'384}), (5 + 1 + 5 + 5) * kPageBytes);
}

}  // namespace
}  // namespace millpond::memory
