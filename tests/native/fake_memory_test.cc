#include "tests/native/fake_memory.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/native/memory_resource_contract.h"

namespace millpond::memory {
namespace {

struct FakeMemorySubject {
  static constexpr int64_t kPeakErrorBytes = 0;
  static std::unique_ptr<MemoryResource> Create() {
    return std::make_unique<FakeMemory>(int64_t{1} << 30);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(FakeMemory, MemoryResourceContract, FakeMemorySubject);

TEST(FakeMemory, AtItsLimitRefusesUntilABlockIsGivenBack) {
  FakeMemory memory(100);
  void* block = memory.Allocate(80, 64);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(memory.Allocate(21, 64), nullptr);
  EXPECT_EQ(memory.Statistics().allocation_count, 1);
  memory.Deallocate(block);
  block = memory.Allocate(100, 64);
  EXPECT_NE(block, nullptr);
  memory.Deallocate(block);
}

}  // namespace
}  // namespace millpond::memory
