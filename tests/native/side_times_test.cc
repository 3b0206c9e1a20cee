#include "native/pjrt/side_times.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millpond::pjrt {
namespace {

void AddAll(const std::vector<int64_t>& ns, int64_t rows, Side side, SideTimes* times) {
  for (const int64_t one : ns) times->Add(rows, side, one);
}

TEST(SideTimes, AllRunsBeginOnTheAccelerator) {
  const SideTimes times({1, 8});
  for (const int64_t rows : {1, 5, 8, 9}) {
    EXPECT_EQ(times.Plan(rows).side, Side::kAccelerator);
    EXPECT_FALSE(times.Plan(rows).is_timed);
  }
  EXPECT_EQ(times.sizes(), (std::vector<int64_t>{1, 8}));
}

TEST(SideTimes, EachSizeHasItsSide) {
  SideTimes times({1, 8, 64});
  EXPECT_TRUE(times.Choose(8, Side::kCpu, SideTimes::kNoProbes));
  EXPECT_FALSE(times.Choose(9, Side::kCpu, SideTimes::kNoProbes));
  EXPECT_EQ(times.Plan(1).side, Side::kAccelerator);
  EXPECT_EQ(times.Plan(2).side, Side::kCpu);
  EXPECT_EQ(times.Plan(8).side, Side::kCpu);
  EXPECT_EQ(times.Plan(9).side, Side::kAccelerator);
  EXPECT_EQ(times.Plan(65).side, Side::kAccelerator) << "as the largest size";
  times.Choose(64, Side::kCpu, SideTimes::kNoProbes);
  EXPECT_EQ(times.Plan(1'000).side, Side::kCpu);
}

TEST(SideTimes, OneRunOfManyIsAProbeAndFewAreTimed) {
  SideTimes times({4});
  times.Choose(4, Side::kCpu, 100);
  int probes = 0;
  int timed = 0;
  for (int i = 0; i < 1'000; ++i) {
    const SidePlan plan = times.Plan(3);
    EXPECT_EQ(plan.is_probe, plan.side == Side::kAccelerator);
    if (plan.is_probe) EXPECT_TRUE(plan.is_timed);
    probes += plan.is_probe;
    timed += plan.is_timed && !plan.is_probe;
  }
  EXPECT_EQ(probes, 10);
  EXPECT_EQ(timed, 1'000 / SideTimes::kTimedOneOf);
}

TEST(SideTimes, AllRunsAreTimedOnRequest) {
  SideTimes times({4});
  times.TimeAll(true);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(times.Plan(4).is_timed);
  times.TimeAll(false);
  EXPECT_FALSE(times.Plan(4).is_timed);
}

TEST(SideTimes, AMedianIsOfTheLastRuns) {
  SideTimes times({4});
  AddAll({5, 1}, 4, Side::kCpu, &times);
  EXPECT_EQ(times.Times()[0].cpu_ns, 0) << "too few";
  AddAll({3}, 2, Side::kCpu, &times);
  EXPECT_EQ(times.Times()[0].cpu_ns, 3);
  EXPECT_EQ(times.Times()[0].accelerator_ns, 0);
  AddAll({70, 90, 80, 70, 90, 80, 70, 90, 80}, 4, Side::kCpu, &times);
  EXPECT_EQ(times.Times()[0].cpu_ns, 80) << "the first ones are forgotten";
  AddAll({9, 9, 9}, 5, Side::kCpu, &times);
  EXPECT_EQ(times.Times()[0].cpu_ns, 80) << "more rows than the largest size";
}

TEST(SideTimes, ThreadsPlanAddAndChooseAtOnce) {
  SideTimes times({1, 8});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&times, thread] {
      for (int i = 0; i < 2'000; ++i) {
        const SidePlan plan = times.Plan(1 + i % 8);
        times.Add(1 + i % 8, plan.side, 7);
        if (thread == 0) times.Choose(8, i % 2 == 0 ? Side::kCpu : Side::kAccelerator, 3);
        for (const SizeTimes& size : times.Times()) EXPECT_TRUE(size.cpu_ns % 7 == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(times.Times()[0].accelerator_ns, 7);
}

}  // namespace
}  // namespace millpond::pjrt
