#include "native/memory/request_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "native/memory/jemalloc_api.h"
#include "tests/native/memory_resource_contract.h"
#include "tests/native/threads.h"

namespace millpond::memory {
namespace {

struct RequestMemorySubject {
  static constexpr int64_t kPeakErrorBytes = RequestMemory::kReportBytes;
  static std::unique_ptr<MemoryResource> Create() { return std::make_unique<RequestMemory>(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(RequestMemory, MemoryResourceContract, RequestMemorySubject);

TEST(RequestMemory, PeakOfManyThreadsIsWithinTheReportOfEach) {
  constexpr int kThreadCount = 8;
  constexpr int kBlockCount = 500;
  constexpr size_t kBlockBytes = 10 * 1024;  // A size class of both allocators, but for a header.
  RequestMemory memory;
  std::vector<std::vector<void*>> blocks(kThreadCount);
  testing::RunTogether(kThreadCount, [&](int thread) {
    for (int block = 0; block < kBlockCount; ++block) {
      blocks[thread].push_back(memory.Allocate(kBlockBytes, 64));
    }
  });
  testing::RunTogether(kThreadCount, [&](int thread) {
    for (void* block : blocks[thread]) memory.Deallocate(block);
  });
  constexpr int64_t kTrueBytes = int64_t{kThreadCount} * kBlockCount * kBlockBytes;
  constexpr int64_t kErrorBytes = kThreadCount * RequestMemory::kReportBytes;
  const MemoryStatistics statistics = memory.Statistics();
  EXPECT_EQ(statistics.in_use_bytes, 0);
  EXPECT_GE(statistics.in_use_bytes_peak, kTrueBytes - kErrorBytes);
  EXPECT_LE(statistics.in_use_bytes_peak, kTrueBytes * 102 / 100 + kErrorBytes);
}

TEST(RequestMemory, PeakSinceAMarkCoversLaterBlocks) {
  constexpr size_t kBeforeBytes = 64 << 20;
  constexpr size_t kAfterBytes = 8 << 20;
  RequestMemory memory;
  void* const before = memory.Allocate(kBeforeBytes, 64);
  memory.MarkPeak();
  EXPECT_EQ(memory.PeakRiseBytes(), 0);
  memory.Deallocate(memory.Allocate(kAfterBytes, 64));
  memory.Deallocate(before);
  EXPECT_GE(memory.PeakRiseBytes(), static_cast<int64_t>(kAfterBytes));
  EXPECT_LE(memory.PeakRiseBytes(), static_cast<int64_t>(kAfterBytes * 2));
  memory.MarkPeak();
  EXPECT_EQ(memory.PeakRiseBytes(), 0);
}

TEST(RequestMemory, CountsEveryBlockOfThreadsThatShareAShard) {
  constexpr int kBlockCount = 300'000;
  RequestMemory memory;
  const auto use = [&] { memory.Deallocate(memory.Allocate(100, 64)); };
  testing::RunOnOneShard(RequestMemory::kShardCount, use, [&] {
    for (int block = 0; block < kBlockCount; ++block) use();
  });
  EXPECT_EQ(memory.Statistics().in_use_bytes, 0);
  EXPECT_EQ(memory.Statistics().allocation_count, 2 * kBlockCount + RequestMemory::kShardCount + 1);
}

// 1 if the page of the block's end has memory behind it before its first touch.
int IsResident(void* block, size_t bytes) {
  unsigned char page = 0;
  const uintptr_t last = reinterpret_cast<uintptr_t>(block) + bytes - 1;
  mincore(reinterpret_cast<void*>(last & ~uintptr_t{4095}), 1, &page);
  return page & 1;
}

TEST(RequestMemory, ALargeBlockThatIsUsedAgainBringsItsPagesAlong) {
  if (!IsJemallocPreloaded()) GTEST_SKIP() << "glibc maps such blocks each time";
  constexpr size_t kBytes = size_t{16} << 20;  // above jemalloc's oversize_threshold
  RequestMemory memory;
  void* const first = memory.Allocate(kBytes, 64);
  std::memset(first, 1, kBytes);
  memory.Deallocate(first);
  void* const second = memory.Allocate(kBytes, 64);
  EXPECT_EQ(IsResident(second, kBytes), 1);
  memory.Deallocate(second);
}

// ctest runs this file twice: as it is, and with jemalloc preloaded.
TEST(JemallocApi, ReportsTheAllocatorThatTheProcessWasStartedWith) {
  const char* preload = std::getenv("LD_PRELOAD");
  const bool is_asked_for =
      preload != nullptr && std::string(preload).find("libjemalloc") != std::string::npos;
  EXPECT_EQ(IsJemallocPreloaded(), is_asked_for);
  EXPECT_EQ(JemallocVersion().substr(0, 2), is_asked_for ? "5." : "");
}

}  // namespace
}  // namespace millpond::memory
