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
  explicit World(bool is_shared) : is_shared_(is_shared) {}

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
    ++open_[model];
    schedule_.Add(model, is_low, static_cast<int64_t>(runs_.size()) - 1, cost_ns);
    BeginRuns();
  }

  // Lets the time pass up to `until_ns`.
  void Advance(int64_t until_ns) {
    while (!under_way_.empty() && runs_[under_way_.front()].ends_ns <= until_ns) {
      const int64_t id = under_way_.front();
      under_way_.pop_front();
      now_ns_ = runs_[id].ends_ns;
      --open_[runs_[id].model];
      used_ns_[runs_[id].model] += schedule_.End(id, runs_[id].began_ns, now_ns_);
      BeginRuns();
    }
    now_ns_ = until_ns;
  }

  int64_t now_ns() const { return now_ns_; }
  const std::vector<Run>& runs() const { return runs_; }
  int64_t used_ns(const std::string& model) { return used_ns_[model]; }
  bool HasRunOf(const std::string& model) { return open_[model] > 0; }
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
    while (const std::optional<int64_t> id = schedule_.Begin(is_shared_)) {
      Run& run = runs_[*id];
      run.began_ns = now_ns_;
      --waiting_[run.model];
      run.ends_ns = std::max(now_ns_, idle_from_ns_) + run.took_ns;
      idle_from_ns_ = run.ends_ns;
      under_way_.push_back(*id);
    }
  }

  const bool is_shared_;
  DeviceSchedule schedule_;
  int64_t now_ns_ = 0;
  int64_t idle_from_ns_ = 0;
  std::vector<Run> runs_;
  std::deque<int64_t> under_way_;
  std::map<std::string, int64_t> waiting_;
  std::map<std::string, int64_t> open_;  // that have not ended
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
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 2);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/false), 301);
  schedule.End(2, 0, 300);
  EXPECT_EQ(schedule.ExpectedWaitNs(/*is_low=*/false), 1);
}

TEST(DeviceScheduleTest, RunsOfOneModelKeepTheirOrder) {
  DeviceSchedule schedule;
  for (const int64_t id : {4, 2, 9}) schedule.Add("m", false, id, kMs / 10);
  EXPECT_EQ(schedule.LeastWaitNs("m"), 3 * kMs / 10);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 4);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 2);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 9);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), std::nullopt);
}

TEST(DeviceScheduleTest, TwoRunsOfAnyCostAreUnderWay) {
  DeviceSchedule schedule;
  for (int64_t id = 1; id <= 3; ++id) schedule.Add("m", false, id, 50 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 1);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 2);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), std::nullopt);
  EXPECT_EQ(schedule.End(1, 0, 50 * kMs), 50 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 3);
  // The second one had the accelerator from the end of the first one on.
  EXPECT_EQ(schedule.End(2, 0, 90 * kMs), 40 * kMs);
}

TEST(DeviceScheduleTest, ARunThatGivesUpDoesNotBegin) {
  DeviceSchedule schedule;
  schedule.Add("m", false, 1, kMs);
  schedule.Add("m", false, 2, kMs);
  EXPECT_TRUE(schedule.Remove("m", 1));
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 2);
  EXPECT_FALSE(schedule.Remove("m", 2));
  EXPECT_FALSE(schedule.Remove("other", 2));
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), std::nullopt);
}

TEST(DeviceScheduleTest, LowPriorityYieldsBetweenRuns) {
  DeviceSchedule schedule;
  for (int64_t id = 1; id <= 3; ++id) schedule.Add("low", true, id, 5 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 1);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 2);
  for (int64_t id = 11; id <= 12; ++id) schedule.Add("m", false, id, 5 * kMs);
  schedule.End(1, 0, 5 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 11);
  schedule.End(2, 0, 10 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 12);
  schedule.End(11, 5 * kMs, 15 * kMs);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/false), 3) << "no other model has a run";
}

// In a swap a model has runs of both priorities, if its settings changed.
TEST(DeviceScheduleTest, AChangeOfPriorityIsNoAdvantage) {
  DeviceSchedule schedule;
  int64_t now_ns = 0;
  int64_t id = 0;
  const auto run_one = [&] {
    const std::optional<int64_t> begun = schedule.Begin(/*is_shared=*/true);
    EXPECT_TRUE(begun.has_value());
    schedule.End(begun.value_or(0), now_ns, now_ns + kMs);
    now_ns += kMs;
    return begun.value_or(0);
  };
  for (int i = 0; i < 1'000; ++i) {
    schedule.Add("other", false, ++id, kMs);
    run_one();
  }
  schedule.Add("m", true, ++id, kMs);
  for (int i = 0; i < 100; ++i) schedule.Add("m", false, ++id, kMs);
  schedule.Add("other", false, ++id, kMs);
  const int64_t others = id;
  int before_count = 0;
  while (run_one() != others) ++before_count;
  EXPECT_LE(before_count, 3);
}

TEST(DeviceScheduleTest, SharingModelsHaveFewRunsUnderWay) {
  DeviceSchedule schedule;
  const auto begin = [&schedule](const std::string& model, int64_t id, int64_t cost_ns) {
    schedule.Add(model, false, id, cost_ns);
    return schedule.Begin(/*is_shared=*/true).value_or(0);
  };
  EXPECT_EQ(begin("long", 1, 3 * kMs), 1);
  EXPECT_EQ(begin("long", 2, 3 * kMs), 0) << "another model would wait for both";
  EXPECT_EQ(begin("short", 3, kMs / 10), 3) << "its transfer is under the long run";
  schedule.End(1, 0, 3 * kMs);
  EXPECT_EQ(schedule.Begin(true), std::nullopt);
  schedule.End(3, 0, 3 * kMs);
  EXPECT_EQ(schedule.Begin(true), 2);
  schedule.End(2, 3 * kMs, 6 * kMs);
  EXPECT_EQ(begin("piece", 4, kMs / 2), 4);
  EXPECT_EQ(begin("piece", 5, kMs / 2), 5);
  EXPECT_EQ(begin("piece", 6, kMs / 2), 0);
}

TEST(DeviceScheduleTest, AnUnknownRunIsAloneWhileModelsShare) {
  DeviceSchedule schedule;
  schedule.Add("m", false, 1, kMs / 10);
  schedule.Add("m", false, 2, 0);
  EXPECT_EQ(schedule.Begin(/*is_shared=*/true), 1);
  EXPECT_EQ(schedule.Begin(true), std::nullopt);
  schedule.End(1, 0, kMs / 10);
  EXPECT_EQ(schedule.Begin(true), 2);
}

// Two models that always have runs use the same time, whatever their runs cost, and also if the
// costs are wrong.
TEST(DeviceScheduleTest, ModelsThatAlwaysHaveRunsShareTheTime) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 50; ++round) {
    World world(/*is_shared=*/round % 2 == 0);
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

// A model below its share waits for the runs under way alone, whatever other models ask for: for a
// long one, and a short one of a third model, or for two short ones.
TEST(DeviceScheduleTest, AModelBelowItsShareWaitsForWhatIsUnderWay) {
  std::mt19937 random(8);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 100; ++round) {
    World world(/*is_shared=*/true);
    std::map<std::string, int64_t> heavy_ns;
    const auto heavy_count = 1 + random() % 3;
    for (unsigned i = 0; i < heavy_count; ++i) {
      heavy_ns["heavy" + std::to_string(i)] = static_cast<int64_t>(kMs / 50 + random() % (4 * kMs));
    }
    const auto light_ns = static_cast<int64_t>(kMs / 50 + random() % DeviceSchedule::kPieceNs);
    int64_t all_ns = light_ns;
    int64_t longest_ns = 0;
    for (const auto& [model, ns] : heavy_ns) {
      longest_ns = std::max(longest_ns, ns);
      all_ns += std::max(ns, light_ns);
    }
    int64_t next_light_ns = 10 * kMs;
    while (world.now_ns() < 400 * kMs) {
      for (const auto& [model, ns] : heavy_ns) {
        while (world.WaitingCount(model) < 5) world.Come(model, false, ns, ns);
      }
      world.Advance(std::min(world.now_ns() + kMs / 10, next_light_ns));
      if (world.now_ns() < next_light_ns) continue;
      // It comes so rarely that each other model has had as much time meanwhile.
      next_light_ns += 2 * all_ns + static_cast<int64_t>(random() % (2 * all_ns));
      if (!world.HasRunOf("light")) world.Come("light", false, light_ns, light_ns);
    }
    const int64_t bound_ns = std::max(longest_ns + (heavy_count > 1 ? DeviceSchedule::kPieceNs : 0),
                                      DeviceSchedule::kSharedUnderWayNs);
    EXPECT_LE(world.LongestWaitNs("light"), bound_ns) << "round " << round;
    int64_t used_ns = world.used_ns("light");
    EXPECT_GT(used_ns, 0);
    for (const auto& [model, ns] : heavy_ns) used_ns += world.used_ns(model);
    EXPECT_GE(used_ns, world.now_ns() - 2 * longest_ns) << "no time is lost; round " << round;
  }
}

// Several runs of a model below its share come at once. Until the last of them begins, each other
// model begins no more than as much time as the burst before it takes, and one run.
TEST(DeviceScheduleTest, ABurstBelowAShareWaitsForEqualTimeAlone) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 50; ++round) {
    World world(/*is_shared=*/true);
    std::map<std::string, int64_t> heavy_ns;
    const auto heavy_count = 1 + random() % 3;
    for (unsigned i = 0; i < heavy_count; ++i) {
      heavy_ns["heavy" + std::to_string(i)] = static_cast<int64_t>(kMs / 50 + random() % (4 * kMs));
    }
    const auto light_ns = static_cast<int64_t>(kMs / 50 + random() % DeviceSchedule::kPieceNs);
    const auto burst_count_max = static_cast<int64_t>(2 + random() % 8);
    const int64_t before_ns = (burst_count_max - 1) * light_ns;
    int64_t longest_ns = 0;
    int64_t others_ns = 0;
    for (const auto& [model, ns] : heavy_ns) {
      longest_ns = std::max(longest_ns, ns);
      others_ns += before_ns + ns;
    }
    const int64_t under_way_ns =
        std::max(longest_ns + DeviceSchedule::kPieceNs, DeviceSchedule::kSharedUnderWayNs);
    const int64_t bound_ns = under_way_ns + before_ns + others_ns;
    int64_t next_burst_ns = 10 * kMs;
    while (world.now_ns() < 400 * kMs) {
      for (const auto& [model, ns] : heavy_ns) {
        while (world.WaitingCount(model) < 5) world.Come(model, false, ns, ns);
      }
      world.Advance(std::min(world.now_ns() + kMs / 10, next_burst_ns));
      if (world.now_ns() < next_burst_ns) continue;
      // Each other model has had as much time when the next burst comes.
      next_burst_ns += 2 * bound_ns + static_cast<int64_t>(random() % bound_ns);
      if (world.HasRunOf("light")) continue;
      const auto burst_count = 1 + static_cast<int64_t>(random()) % burst_count_max;
      for (int64_t i = 0; i < burst_count; ++i) world.Come("light", false, light_ns, light_ns);
    }
    EXPECT_LE(world.LongestWaitNs("light"), bound_ns) << "round " << round;
    EXPECT_GT(world.LongestWaitNs("light"), 0) << "round " << round;
  }
}

// The accelerator is never idle while a run waits, whatever comes and goes; and each run begins.
TEST(DeviceScheduleTest, NoRunWaitsWhileTheAcceleratorIsIdle) {
  std::mt19937 random(4);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 100; ++round) {
    const bool is_shared = round % 2 == 0;
    World world(is_shared);
    for (int step = 0; step < 200; ++step) {
      const std::string model(1, static_cast<char>('a' + random() % 4));
      const auto took_ns = static_cast<int64_t>(random() % (20 * kMs));
      world.Come(model, model == "d", took_ns, static_cast<int64_t>(random() % (20 * kMs)));
      world.Advance(world.now_ns() + static_cast<int64_t>(random() % (15 * kMs)));
      int64_t waiting = 0;
      for (const std::string name : {"a", "b", "c", "d"}) waiting += world.WaitingCount(name);
      ASSERT_TRUE(waiting == 0 || world.under_way_count() >= (is_shared ? 1 : 2));
    }
    world.Advance(world.now_ns() + 10'000 * kMs);
    for (const World::Run& run : world.runs()) ASSERT_GE(run.began_ns, 0);
  }
}

}  // namespace
}  // namespace millpond::pjrt
