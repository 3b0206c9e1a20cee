#include "native/pjrt/device_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace millpond::pjrt {
namespace {

constexpr int64_t kMs = 1'000'000;

// An accelerator that computes the runs in the order in which they begin, on a clock of its own.
class World {
 public:
  struct Run {
    std::string model;
    int64_t came_ns = 0;
    int64_t took_ns = 0;
    int64_t began_ns = -1;
    int64_t ends_ns = 0;
  };

  // A run of `model` comes now. It will take `took_ns`, and is expected to take `cost_ns`.
  void Come(const std::string& model, bool is_low, int64_t took_ns, int64_t cost_ns) {
    runs_.push_back({model, now_ns_, took_ns, -1, 0});
    ++waiting_[model];
    schedule_.Add(model, is_low, static_cast<int64_t>(runs_.size()) - 1, cost_ns);
    BeginRuns();
  }

  // Lets the time pass up to `until_ns`.
  void Advance(int64_t until_ns) {
    while (!under_way_.empty() && runs_[under_way_.front()].ends_ns <= until_ns) {
      const int64_t id = under_way_.front();
      under_way_.pop_front();
      now_ns_ = runs_[id].ends_ns;
      used_ns_[runs_[id].model] += schedule_.End(id, runs_[id].began_ns, now_ns_);
      BeginRuns();
    }
    now_ns_ = until_ns;
  }

  int64_t now_ns() const { return now_ns_; }
  const std::vector<Run>& runs() const { return runs_; }
  int64_t used_ns(const std::string& model) { return used_ns_[model]; }
  size_t under_way_count() const { return under_way_.size(); }
  int64_t WaitingCount(const std::string& model) { return waiting_[model]; }
  // The longest time from the arrival of a run of `model` to the begin of its computation.
  int64_t LongestWaitNs(const std::string& model) const {
    int64_t longest = 0;
    for (const Run& run : runs_) {
      if (run.model == model && run.began_ns >= 0) {
        longest = std::max(longest, run.ends_ns - run.took_ns - run.came_ns);
      }
    }
    return longest;
  }

 private:
  void BeginRuns() {
    while (const std::optional<int64_t> id = schedule_.Begin()) {
      Run& run = runs_[*id];
      run.began_ns = now_ns_;
      --waiting_[run.model];
      run.ends_ns = std::max(now_ns_, idle_from_ns_) + run.took_ns;
      idle_from_ns_ = run.ends_ns;
      under_way_.push_back(*id);
    }
  }

  DeviceSchedule schedule_;
  int64_t now_ns_ = 0;
  int64_t idle_from_ns_ = 0;
  std::vector<Run> runs_;
  std::deque<int64_t> under_way_;
  std::map<std::string, int64_t> waiting_;
  std::map<std::string, int64_t> used_ns_;
};

TEST(DeviceScheduleTest, ExpectedWaitIsOfRunsThatComeFirst) {
  DeviceSchedule schedule;
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/true), 0);
  schedule.Add("low", /*is_low=*/true, 1, 500);
  schedule.Add("normal", /*is_low=*/false, 2, 300);
  schedule.Add("normal", /*is_low=*/false, 3, 0);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/false), 301);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/true), 801);
  EXPECT_EQ(schedule.Begin(), 2);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/false), 301);
  schedule.End(2, 0, 300);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/false), 1);
}

TEST(DeviceScheduleTest, RunsOfOneModelKeepTheirOrder) {
  DeviceSchedule schedule;
  for (const int64_t id : {4, 2, 9}) schedule.Add("m", false, id, kMs / 10);
  EXPECT_EQ(schedule.LeastWaitNs("m"), 3 * kMs / 10);
  EXPECT_EQ(schedule.Begin(), 4);
  EXPECT_EQ(schedule.Begin(), 2);
  EXPECT_EQ(schedule.Begin(), 9);
  EXPECT_EQ(schedule.Begin(), std::nullopt);
}

TEST(DeviceScheduleTest, TwoRunsOfAnyCostAreUnderWay) {
  DeviceSchedule schedule;
  for (int64_t id = 1; id <= 3; ++id) schedule.Add("m", false, id, 50 * kMs);
  EXPECT_EQ(schedule.Begin(), 1);
  EXPECT_EQ(schedule.Begin(), 2);
  EXPECT_EQ(schedule.Begin(), std::nullopt);
  EXPECT_EQ(schedule.End(1, 0, 50 * kMs), 50 * kMs);
  EXPECT_EQ(schedule.Begin(), 3);
  // The second one had the accelerator from the end of the first one on.
  EXPECT_EQ(schedule.End(2, 0, 90 * kMs), 40 * kMs);
}

TEST(DeviceScheduleTest, ARunThatGivesUpDoesNotBegin) {
  DeviceSchedule schedule;
  schedule.Add("m", false, 1, kMs);
  schedule.Add("m", false, 2, kMs);
  EXPECT_TRUE(schedule.Remove("m", 1));
  EXPECT_EQ(schedule.Begin(), 2);
  EXPECT_FALSE(schedule.Remove("m", 2));
  EXPECT_FALSE(schedule.Remove("other", 2));
  EXPECT_EQ(schedule.Begin(), std::nullopt);
}

TEST(DeviceScheduleTest, LowPriorityYieldsBetweenRuns) {
  DeviceSchedule schedule;
  for (int64_t id = 1; id <= 3; ++id) schedule.Add("low", true, id, 5 * kMs);
  EXPECT_EQ(schedule.Begin(), 1);
  EXPECT_EQ(schedule.Begin(), 2);
  for (int64_t id = 11; id <= 12; ++id) schedule.Add("m", false, id, 5 * kMs);
  schedule.End(1, 0, 5 * kMs);
  EXPECT_EQ(schedule.Begin(), 11);
  schedule.End(2, 0, 10 * kMs);
  EXPECT_EQ(schedule.Begin(), 12);
  schedule.End(11, 5 * kMs, 15 * kMs);
  EXPECT_EQ(schedule.Begin(), 3) << "no other model has a run";
}

// Two models that always have runs use the same time, whatever their runs cost, and also if the
// costs are wrong.
TEST(DeviceScheduleTest, ModelsThatAlwaysHaveRunsShareTheTime) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 50; ++round) {
    World world;
    std::map<std::string, std::pair<int64_t, int64_t>> took_and_cost;
    for (const std::string model : {"a", "b", "c"}) {
      const auto took_ns = static_cast<int64_t>(kMs / 20 + random() % (8 * kMs));
      took_and_cost[model] = {took_ns, took_ns * static_cast<int64_t>(1 + random() % 6) / 3};
    }
    while (world.now_ns() < 1'000 * kMs) {
      for (const auto& [model, run] : took_and_cost) {
        while (world.WaitingCount(model) * run.first < 2 * kMs + run.first) {
          world.Come(model, false, run.first, run.second);
        }
      }
      world.Advance(world.now_ns() + kMs);
    }
    const int64_t least = std::min({world.used_ns("a"), world.used_ns("b"), world.used_ns("c")});
    const int64_t most = std::max({world.used_ns("a"), world.used_ns("b"), world.used_ns("c")});
    EXPECT_LE(most - least, 40 * kMs) << "round " << round;
  }
}

// One model asks for five times the accelerator; the other's waits stay within its share.
TEST(DeviceScheduleTest, AModelBeyondSaturationBoundsTheOthersWait) {
  std::mt19937 random(8);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 60; ++round) {
    World world;
    const auto heavy_ns = static_cast<int64_t>(kMs / 10 + random() % (4 * kMs));
    const auto light_ns = static_cast<int64_t>(kMs / 10 + random() % kMs);
    // The light model uses a quarter of the accelerator, which is below its half.
    const int64_t light_gap_ns = 4 * light_ns;
    int64_t next_heavy_ns = 0;
    int64_t next_light_ns = 0;
    while (world.now_ns() < 400 * kMs) {
      const int64_t next_ns = std::min(next_heavy_ns, next_light_ns);
      world.Advance(next_ns);
      if (next_ns == next_heavy_ns) {
        next_heavy_ns += heavy_ns / 5 + 1;
        // A server bounds the requests that wait for a model.
        if (world.WaitingCount("heavy") < 50) world.Come("heavy", false, heavy_ns, heavy_ns);
      } else {
        next_light_ns += light_gap_ns / 2 + static_cast<int64_t>(random() % light_gap_ns);
        world.Come("light", false, light_ns, light_ns);
      }
    }
    // The runs under way, and a round of the heavy model for each quantum of a few light runs.
    const int64_t under_way_ns = std::max(2 * heavy_ns, DeviceSchedule::kUnderWayNs + heavy_ns);
    const int64_t rounds = 1 + 3 * light_ns / DeviceSchedule::kQuantumNs + 1;
    const int64_t bound_ns = under_way_ns + rounds * (DeviceSchedule::kQuantumNs + heavy_ns);
    EXPECT_LE(world.LongestWaitNs("light"), bound_ns) << "round " << round;
    // The share that the light model leaves is the heavy one's.
    EXPECT_GE(world.used_ns("heavy"), 7 * world.now_ns() / 10) << "round " << round;
  }
}

// The accelerator is never idle while a run waits, whatever comes and goes; and each run begins.
TEST(DeviceScheduleTest, NoRunWaitsWhileTheAcceleratorIsIdle) {
  std::mt19937 random(4);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 100; ++round) {
    World world;
    for (int step = 0; step < 200; ++step) {
      const std::string model(1, static_cast<char>('a' + random() % 4));
      const auto took_ns = static_cast<int64_t>(random() % (20 * kMs));
      world.Come(model, model == "d", took_ns, static_cast<int64_t>(random() % (20 * kMs)));
      world.Advance(world.now_ns() + static_cast<int64_t>(random() % (15 * kMs)));
      int64_t waiting = 0;
      for (const std::string name : {"a", "b", "c", "d"}) waiting += world.WaitingCount(name);
      ASSERT_TRUE(waiting == 0 || world.under_way_count() >= 2);
    }
    world.Advance(world.now_ns() + 10'000 * kMs);
    for (const World::Run& run : world.runs()) ASSERT_GE(run.began_ns, 0);
  }
}

}  // namespace
}  // namespace millpond::pjrt
