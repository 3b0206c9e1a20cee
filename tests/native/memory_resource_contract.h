#pragma once

// The contract of every memory::MemoryResource: one suite, run over each of them. To add a
// resource, write a subject and instantiate the suite with it:
//
//   struct RequestMemorySubject {
//     // The largest error of its peak.
//     static constexpr int64_t kPeakErrorBytes = ...;
//     // Returns nullptr if this process does not support it; the suite is then skipped.
//     static std::unique_ptr<MemoryResource> Create();
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(RequestMemory, MemoryResourceContract, RequestMemorySubject);

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "native/memory/memory_resource.h"
#include "tests/native/threads.h"

namespace millpond::memory {

inline constexpr size_t kTensorAlignment = 64;

template <typename Subject>
class MemoryResourceContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (resource_ == nullptr) GTEST_SKIP() << "this process does not support the resource";
  }

  void* Allocate(size_t bytes, size_t alignment = kTensorAlignment) {
    return resource_->Allocate(bytes, alignment);
  }
  void Deallocate(void* block) { resource_->Deallocate(block); }
  MemoryStatistics Statistics() const { return resource_->Statistics(); }

  const std::unique_ptr<MemoryResource> resource_ = Subject::Create();
};
TYPED_TEST_SUITE_P(MemoryResourceContract);

TYPED_TEST_P(MemoryResourceContract, BlocksAreAlignedAndWritableToTheEnd) {
  for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
    for (const size_t bytes : {1, 7, 64, 100, 4096, 14'337, 100'000, 1'048'577}) {
      void* block = this->Allocate(bytes, alignment);
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0)
          << bytes << " bytes, alignment " << alignment;
      std::memset(block, 0xa5, bytes);
      this->Deallocate(block);
    }
  }
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
}

TYPED_TEST_P(MemoryResourceContract, ZeroBytesGiveABlockToo) {
  void* block = this->Allocate(0);
  void* other = this->Allocate(0);
  EXPECT_NE(block, nullptr);
  EXPECT_NE(block, other);
  EXPECT_EQ(this->Statistics().allocation_count, 2);
  this->Deallocate(block);
  this->Deallocate(other);
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
}

TYPED_TEST_P(MemoryResourceContract, DeallocatingNullptrChangesNothing) {
  this->Deallocate(nullptr);
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
  EXPECT_EQ(this->Statistics().allocation_count, 0);
}

TYPED_TEST_P(MemoryResourceContract, ImpossibleSizesGiveNullptrAndChangeNothing) {
  void* kept = this->Allocate(1000);
  const MemoryStatistics before = this->Statistics();
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2 + 1, SIZE_MAX / 4}) {
    for (const size_t alignment : {size_t{1}, size_t{8}, kTensorAlignment, size_t{4096}}) {
      EXPECT_EQ(this->Allocate(bytes, alignment), nullptr) << bytes;
    }
  }
  EXPECT_EQ(this->Statistics().in_use_bytes, before.in_use_bytes);
  EXPECT_EQ(this->Statistics().in_use_bytes_peak, before.in_use_bytes_peak);
  EXPECT_EQ(this->Statistics().allocation_count, before.allocation_count);
  this->Deallocate(kept);
}

TYPED_TEST_P(MemoryResourceContract, StatisticsFollowEachAllocationAndDeallocation) {
  std::vector<void*> blocks;
  int64_t requested_bytes = 0;
  for (const size_t bytes : {10, 3'000, 200'000, 5'000'000}) {
    blocks.push_back(this->Allocate(bytes));
    requested_bytes += static_cast<int64_t>(bytes);
    EXPECT_GE(this->Statistics().in_use_bytes, requested_bytes);
    EXPECT_EQ(this->Statistics().allocation_count, blocks.size());
  }
  int64_t in_use_bytes = this->Statistics().in_use_bytes;
  for (void* block : blocks) {
    this->Deallocate(block);
    EXPECT_LT(this->Statistics().in_use_bytes, in_use_bytes);
    in_use_bytes = this->Statistics().in_use_bytes;
  }
  EXPECT_EQ(in_use_bytes, 0);
  EXPECT_EQ(this->Statistics().allocation_count, 4);
}

TYPED_TEST_P(MemoryResourceContract, PeakIsKeptWithinItsError) {
  std::vector<void*> blocks;
  for (int block = 0; block < 1'000; ++block) blocks.push_back(this->Allocate(10'000));
  for (void* block : blocks) this->Deallocate(block);
  const int64_t peak_bytes = this->Statistics().in_use_bytes_peak;
  EXPECT_GE(peak_bytes, 1'000 * 10'000 - TypeParam::kPeakErrorBytes);
  EXPECT_LE(peak_bytes, 1'000 * 10'240 * 12 / 10 + TypeParam::kPeakErrorBytes);
  void* small = this->Allocate(100);
  EXPECT_EQ(this->Statistics().in_use_bytes_peak, peak_bytes);
  this->Deallocate(small);
}

TYPED_TEST_P(MemoryResourceContract, RandomBlocksKeepTheirContents) {
  struct Written {
    unsigned char* start;
    size_t bytes;
    unsigned char value;
  };
  const auto expect_kept = [](const Written& block) {
    for (size_t i = 0; i < block.bytes; ++i) ASSERT_EQ(block.start[i], block.value);
  };
  std::mt19937_64 rng(42);
  std::vector<Written> live;
  for (int step = 0; step < 3'000; ++step) {
    if (live.size() > 60) {
      std::swap(live[rng() % live.size()], live.back());
      expect_kept(live.back());
      this->Deallocate(live.back().start);
      live.pop_back();
    }
    const size_t bytes = 1 + rng() % (size_t{1} << (rng() % 17));
    void* start = this->Allocate(bytes, size_t{1} << (rng() % 8));
    ASSERT_NE(start, nullptr);
    const auto value = static_cast<unsigned char>(step);
    std::memset(start, value, bytes);
    live.push_back({static_cast<unsigned char*>(start), bytes, value});
  }
  for (const Written& block : live) {
    expect_kept(block);
    this->Deallocate(block.start);
  }
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
  EXPECT_EQ(this->Statistics().allocation_count, 3'000);
}

TYPED_TEST_P(MemoryResourceContract, BlocksMayBeFreedOnAnotherThread) {
  constexpr int kThreadCount = 6;
  constexpr int kBlockCount = 3'000;
  std::mutex mutex;
  std::vector<void*> handed_over;
  testing::RunTogether(kThreadCount, [&](int thread) {
    std::mt19937_64 rng(thread);
    for (int block = 0; block < kBlockCount; ++block) {
      const size_t bytes = 8 + rng() % 20'000;
      void* mine = this->Allocate(bytes);
      std::memset(mine, thread, 8);
      const std::lock_guard lock(mutex);
      handed_over.push_back(mine);
      std::swap(handed_over[rng() % handed_over.size()], handed_over.back());
      if (handed_over.size() < 20) continue;
      this->Deallocate(handed_over.back());
      handed_over.pop_back();
    }
  });
  for (void* block : handed_over) this->Deallocate(block);
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
  EXPECT_EQ(this->Statistics().allocation_count, kThreadCount * kBlockCount);
}

TYPED_TEST_P(MemoryResourceContract, StatisticsMayBeReadBesideRunningThreads) {
  std::atomic<bool> threads_run{true};
  std::thread reader([&] {
    MemoryStatistics before;
    while (threads_run.load()) {
      const MemoryStatistics now = this->Statistics();
      EXPECT_GE(now.allocation_count, before.allocation_count);
      EXPECT_GE(now.in_use_bytes_peak, before.in_use_bytes_peak);
      before = now;
    }
  });
  testing::RunTogether(3, [&](int) {
    for (int block = 0; block < 5'000; ++block) {
      this->Deallocate(this->Allocate(500 + block * 100));
    }
  });
  threads_run = false;
  reader.join();
  EXPECT_EQ(this->Statistics().in_use_bytes, 0);
  EXPECT_EQ(this->Statistics().allocation_count, 15'000);
}

REGISTER_TYPED_TEST_SUITE_P(MemoryResourceContract, BlocksAreAlignedAndWritableToTheEnd,
                            ZeroBytesGiveABlockToo, DeallocatingNullptrChangesNothing,
                            ImpossibleSizesGiveNullptrAndChangeNothing,
                            StatisticsFollowEachAllocationAndDeallocation, PeakIsKeptWithinItsError,
                            RandomBlocksKeepTheirContents, BlocksMayBeFreedOnAnotherThread,
                            StatisticsMayBeReadBesideRunningThreads);

}  // namespace millpond::memory
