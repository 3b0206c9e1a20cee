// The request that the tasks on a pool's threads count for. Runs over jemalloc, which counts for
// each thread.
#define EIGEN_USE_THREADS  // before Eigen, for its devices with several threads

#include "native/tf/run_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/giving_way.h"
#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "native/memory/request_memory.h"
#include "native/memory/thread_usage.h"
#include "native/tensor/run_context.h"
#include "native/tf/core_share.h"
#include "native/tf/load_control.h"
#include "native/tf/memory_allocator.h"
#include "native/tf/run_memory_limits.h"
#include "native/tf/runtime.h"
#include "native/tf/servable_device.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session_options.h"
#include "tests/native/threads.h"
#include "unsupported/Eigen/CXX11/Tensor"
#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/platform/threadpool.h"

namespace millpond::tf {
namespace {

using base::Code;

// A size class of jemalloc, which counts whole classes.
constexpr int64_t kMiB = 1 << 20;

// A pool whose tasks wait until the test runs them.
class HeldPool final : public Eigen::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return -1; }

  // Runs the tasks, and those that they schedule, on a thread of their own.
  void RunAll() {
    std::thread([this] { RunHere(); }).join();
  }
  void RunHere() {
    while (!tasks_.empty()) {
      const std::vector<std::function<void()>> tasks = std::exchange(tasks_, {});
      for (const auto& task : tasks) task();
    }
  }

 private:
  std::vector<std::function<void()>> tasks_;
};

// A block that a task allocates and another may free.
class Block {
 public:
  void Allocate(int64_t bytes) { bytes_ = std::make_unique<std::vector<char>>(bytes); }
  void Free() { bytes_.reset(); }

 private:
  std::unique_ptr<std::vector<char>> bytes_;
};

class RunPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(memory::IsThreadUsageCounted()) << "run this with LD_PRELOAD=libjemalloc.so.2";
  }

  // The vector of a block, which is beside its bytes.
  static constexpr int64_t kSlackBytes = 64;
  static void ExpectBytes(const PoolUsageScope& scope, int64_t bytes) {
    EXPECT_GE(scope.bytes(), bytes);
    EXPECT_LE(scope.bytes(), bytes + (bytes == 0 ? 0 : kSlackBytes));
  }

  HeldPool held_;
  RunPool pool_{&held_};
  Block block_;
  Block other_;
};

TEST_F(RunPoolTest, ATaskCountsForTheRunThatSchedulesIt) {
  const PoolUsageScope scope(true);
  pool_.Schedule([&] { block_.Allocate(kMiB); });
  pool_.ScheduleWithHint([&] { other_.Allocate(2 * kMiB); }, 0, 1);
  EXPECT_EQ(scope.bytes(), 0);
  held_.RunAll();
  EXPECT_GE(scope.bytes(), 3 * kMiB);
  EXPECT_LE(scope.bytes(), 3 * kMiB + 2 * kSlackBytes);
}

TEST_F(RunPoolTest, MemoryFreedByTasksIsNotCounted) {
  const PoolUsageScope scope(true);
  pool_.Schedule([&] { block_.Allocate(kMiB); });
  held_.RunAll();
  ExpectBytes(scope, kMiB);
  pool_.Schedule([&] { block_.Free(); });
  pool_.Schedule([&] {
    other_.Allocate(kMiB);
    other_.Free();
  });
  held_.RunAll();
  EXPECT_EQ(scope.bytes(), 0);
}

TEST_F(RunPoolTest, TasksOfTasksCountForTheirRun) {
  const PoolUsageScope scope(true);
  pool_.Schedule([&] { pool_.Schedule([&] { block_.Allocate(kMiB); }); });
  held_.RunAll();
  EXPECT_GE(scope.bytes(), kMiB);
}

TEST_F(RunPoolTest, ATaskOnItsOwnRunsThreadIsNotCountedTwice) {
  const PoolUsageScope scope(true);
  pool_.Schedule([&] { block_.Allocate(kMiB); });
  held_.RunHere();
  EXPECT_EQ(scope.bytes(), 0);
}

TEST_F(RunPoolTest, AScopeWithinThatCountsNothingHidesTheOuter) {
  const PoolUsageScope outer(true);
  {
    const PoolUsageScope inner(false);
    pool_.Schedule([&] { block_.Allocate(kMiB); });
    held_.RunAll();
    EXPECT_EQ(inner.bytes(), 0);
  }
  EXPECT_EQ(outer.bytes(), 0);
  pool_.Schedule([&] { other_.Allocate(kMiB); });
  held_.RunAll();
  ExpectBytes(outer, kMiB);
}

TEST_F(RunPoolTest, RunsShareTheCores) {
  const auto core_count = static_cast<int>(base::AllowedCores().size());
  std::vector<std::unique_ptr<CoreShareScope>> runs;
  for (int count = 1; count <= 2 * core_count; ++count) {
    runs.push_back(std::make_unique<CoreShareScope>());
    EXPECT_EQ(runs.back()->cores(), std::max(core_count / count, 1));
  }
  EXPECT_EQ(CurrentCoreShare(), 1);
  while (!runs.empty()) runs.pop_back();
  EXPECT_EQ(CoreShareScope().cores(), core_count);
  EXPECT_GE(CurrentCoreShare(), core_count);
}

TEST_F(RunPoolTest, AShareHasALimitBesidesTheOtherRuns) {
  EXPECT_EQ(CoreShareScope(/*cores_max=*/1).cores(), 1);
  EXPECT_EQ(CoreShareScope().cores(), static_cast<int>(base::AllowedCores().size()));
}

// The product of matrices schedules a task and waits for it, whatever its device's threads.
TEST_F(RunPoolTest, TasksOfAShareOfOneCoreRunOnItsThread) {
  ServableDevice device(tensorflow::SessionOptions(), "/job:localhost/device:CPU:0",
                        tsl::cpu_allocator(), nullptr);
  const CoreShareScope run(/*cores_max=*/1);
  const Eigen::ThreadPoolDevice* const shared = device.eigen_cpu_device();
  std::thread::id of_eigen;
  std::thread::id of_workers;
  shared->getPool()->Schedule([&] { of_eigen = std::this_thread::get_id(); });
  device.tensorflow_cpu_worker_threads()->workers->Schedule(
      [&] { of_workers = std::this_thread::get_id(); });
  EXPECT_EQ(shared->numThreads(), 1);
  EXPECT_EQ(of_eigen, std::this_thread::get_id());
  EXPECT_EQ(of_workers, std::this_thread::get_id());
}

TEST_F(RunPoolTest, ALoadUsesOneCoreAndTakesNoneFromRequests) {
  const CoreShareScope request;
  std::thread([&] {
    ASSERT_TRUE(base::SetThreadPriority(base::ThreadPriority::kNice).ok());
    const CoreShareScope load;
    EXPECT_EQ(load.cores(), 1);
    const CoreShareScope another_load;
  }).join();
  EXPECT_EQ(CoreShareScope().cores(),
            std::max(static_cast<int>(base::AllowedCores().size()) / 2, 1));
}

TEST_F(RunPoolTest, ARunThatGivesWayHasOneCoreAndTakesNoneFromOthers) {
  const int core_count = static_cast<int>(base::AllowedCores().size());
  std::thread([&] {
    std::atomic<bool> gives_way{false};
    const base::GivingWayScope giving_way(&gives_way);
    const CoreShareScope run;
    CoreShareScope::GiveWay();
    EXPECT_EQ(CurrentCoreShare(), core_count);
    gives_way = true;
    CoreShareScope::GiveWay();
    EXPECT_EQ(CurrentCoreShare(), 1);
    testing::RunTogether(1, [&](int) { EXPECT_EQ(CoreShareScope().cores(), core_count); });
    EXPECT_EQ(CoreShareScope().cores(), 1);
  }).join();
  EXPECT_EQ(CoreShareScope().cores(), core_count);
}

// As with --load_priority=normal, and if the kernel refuses a lower priority.
TEST_F(RunPoolTest, ALoadOfTheUsualPriorityIsNoRequest) {
  while (AreRequestsComing()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  LoadControl control;
  const LoadScope load_scope(&control);
  const CoreShareScope load;
  EXPECT_EQ(load.cores(), 1);
  EXPECT_FALSE(AreRequestsComing());
}

TEST_F(RunPoolTest, RequestsComeDuringARunAndShortlyAfterIt) {
  { const CoreShareScope request; }
  EXPECT_TRUE(AreRequestsComing());
  while (AreRequestsComing()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::thread([&] {
    ASSERT_TRUE(base::SetThreadPriority(base::ThreadPriority::kNice).ok());
    const CoreShareScope load;
    EXPECT_FALSE(AreRequestsComing());
  }).join();
  const CoreShareScope request;
  EXPECT_TRUE(AreRequestsComing());
}

TEST_F(RunPoolTest, ATaskMayEndAfterItsRun) {
  {
    const PoolUsageScope scope(true);
    pool_.Schedule([&] { block_.Allocate(kMiB); });
  }
  const PoolUsageScope next(true);
  held_.RunAll();
  EXPECT_EQ(next.bytes(), 0);
}

// This runs on TensorFlow's own pool, whose threads work for one run after the other.
TEST_F(RunPoolTest, RunsAtOnceCountApartAndReturnToZero) {
  constexpr int kTaskCount = 8;
  tsl::thread::ThreadPool threads(tensorflow::Env::Default(), "run_pool_test", 3);
  RunPool pool(threads.AsEigenThreadPool());
  testing::RunTogether(4, [&](int thread) {
    const int64_t bytes = (thread + 1) * kMiB;
    for (int run = 0; run < 20; ++run) {
      const PoolUsageScope scope(true);
      std::vector<Block> blocks(kTaskCount);
      for (Block& block : blocks) {
        pool.Schedule([&block, bytes] { block.Allocate(bytes); });
      }
      // A task is counted a moment after its work is done. If more or fewer are counted, the wait
      // never ends.
      while (scope.bytes() < kTaskCount * bytes) std::this_thread::yield();
      EXPECT_LE(scope.bytes(), kTaskCount * (bytes + kSlackBytes));
      for (Block& block : blocks) {
        pool.Schedule([&block] { block.Free(); });
      }
      while (scope.bytes() != 0) std::this_thread::yield();
    }
  });
}

class RunMemoryTest : public RunPoolTest {
 protected:
  static constexpr int64_t kLimitBytes = 8 * kMiB;

  bool Allocates(int64_t bytes) {
    void* const block = allocator_.AllocateRaw(64, bytes);
    if (block == nullptr) return false;
    allocator_.DeallocateRaw(block);
    return true;
  }

  const tensor::RunContext run_;
  memory::RequestMemory memory_;
  MemoryAllocator requests_{"requests", &memory_};
  RunAllocator allocator_{&requests_};
};

TEST_F(RunMemoryTest, ARunMayHaveItsLimitAtATime) {
  const RunScope scope(run_, /*checks_shapes=*/false, kLimitBytes);
  void* const block = allocator_.AllocateRaw(64, 5 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_FALSE(Allocates(5 * kMiB));
  EXPECT_TRUE(Allocates(2 * kMiB));
  allocator_.DeallocateRaw(block);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Allocates(5 * kMiB));
}

TEST_F(RunMemoryTest, MemoryOfItsTasksCountsForItsLimit) {
  const RunScope scope(run_, /*checks_shapes=*/false, kLimitBytes);
  pool_.Schedule([&] { block_.Allocate(5 * kMiB); });
  EXPECT_TRUE(Allocates(5 * kMiB));
  held_.RunAll();
  EXPECT_FALSE(Allocates(5 * kMiB));
  pool_.Schedule([&] { block_.Free(); });
  held_.RunAll();
  EXPECT_TRUE(Allocates(5 * kMiB));
}

TEST_F(RunMemoryTest, TheErrorNamesTheLimitAndTheFlag) {
  const int64_t ended_count = RunsEndedByMemory();
  const RunScope scope(run_, /*checks_shapes=*/false, kLimitBytes);
  EXPECT_EQ(scope.Explain(base::Internal("a kernel's")).code(), Code::kInternal);
  EXPECT_FALSE(Allocates(kLimitBytes + 1));
  EXPECT_TRUE(scope.Explain({}).ok());
  const base::Status explained = scope.Explain(base::Internal("a kernel's"));
  EXPECT_EQ(explained.code(), Code::kResourceExhausted);
  for (const std::string part : {"8388608 bytes", "--run_memory_bytes", "a kernel's"}) {
    EXPECT_NE(explained.message().find(part), std::string::npos) << explained.message();
  }
  EXPECT_EQ(RunsEndedByMemory(), ended_count + 1);
}

TEST_F(RunMemoryTest, AllRunsOfClientsHaveOneBudget) {
  base::ByteBudget requests;
  tensor::RunContext run;
  run.budget = &requests;
  base::ByteBudget all_runs(10 * kMiB);
  {
    RunScope first(run, /*checks_shapes=*/false, kLimitBytes, /*writes=*/nullptr, &all_runs);
    void* const block = allocator_.AllocateRaw(64, 5 * kMiB);
    ASSERT_NE(block, nullptr);
    EXPECT_GE(all_runs.in_use_bytes(), 5 * kMiB);
    testing::RunTogether(1, [&](int) {
      const RunScope second(run, /*checks_shapes=*/false, kLimitBytes, /*writes=*/nullptr,
                            &all_runs);
      EXPECT_TRUE(Allocates(RunScope::kFreeBytes / 2));
      EXPECT_FALSE(Allocates(6 * kMiB));
      const base::Status explained = second.Explain(base::Internal("a kernel's"));
      EXPECT_EQ(explained.code(), Code::kResourceExhausted);
      EXPECT_NE(explained.message().find("all runs"), std::string::npos) << explained.message();
      EXPECT_TRUE(Allocates(2 * kMiB));
    });
    // The results of a run stay charged for as long as they are kept.
    const auto charge = first.TakeCharge();
    ASSERT_NE(charge, nullptr);
    EXPECT_GE(all_runs.in_use_bytes(), 5 * kMiB);
    EXPECT_LT(all_runs.in_use_bytes(), 6 * kMiB);
    allocator_.DeallocateRaw(block);
  }
  EXPECT_EQ(all_runs.in_use_bytes(), 0);
}

TEST_F(RunMemoryTest, TheRunsOfALoadAreOutsideTheBudgetOfClients) {
  base::ByteBudget all_runs(0);
  const RunScope scope(run_, /*checks_shapes=*/false, kLimitBytes, /*writes=*/nullptr, &all_runs);
  EXPECT_TRUE(Allocates(5 * kMiB));
  EXPECT_EQ(all_runs.in_use_bytes(), 0);
}

TEST_F(RunMemoryTest, WithoutALimitNothingIsRefused) {
  const RunScope scope(run_);
  EXPECT_TRUE(Allocates(4 * kLimitBytes));
  EXPECT_EQ(scope.Explain(base::Internal("a kernel's")).code(), Code::kInternal);
}

TEST_F(RunMemoryTest, RunsOnOtherThreadsHaveLimitsOfTheirOwn) {
  testing::RunTogether(4, [&](int) {
    const RunScope scope(run_, /*checks_shapes=*/false, kLimitBytes);
    for (int i = 0; i < 100; ++i) {
      void* const block = allocator_.AllocateRaw(64, 6 * kMiB);
      EXPECT_NE(block, nullptr);
      EXPECT_FALSE(Allocates(3 * kMiB));
      if (block != nullptr) allocator_.DeallocateRaw(block);
    }
  });
}

}  // namespace
}  // namespace millpond::tf
