// The promise of thread_groups.h, without a watchdog that would mend what it misses: threads as
// RequestThreads has them, over doors that are epoll sets.

#include "native/rpc/thread_groups.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/rpc/incoming_request.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/stream_call.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using Calls = std::vector<std::shared_ptr<RunnableCall>>;

struct SilentHandler final : testing::WholeAnswers {
  void Answer(RunnableCall*) override {}
  std::string ModelNameOf(const Call&) const override { return ""; }
};

// The place at which the threads of one group wait. One event and one wake-up each end the wait of
// one thread.
class Door {
 public:
  void Put(Calls event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_one();
  }
  void Wake() {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    changed_.notify_one();
  }
  // Returns true if it was woken, and otherwise what an event brought.
  bool Wait(bool may_wait, Calls* event) {
    std::unique_lock lock(mutex_);
    if (may_wait) changed_.wait(lock, [this] { return is_woken_ || !events_.empty(); });
    if (events_.empty()) return std::exchange(is_woken_, false);
    *event = std::move(events_.front());
    events_.pop_front();
    return false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Calls> events_;
  bool is_woken_ = false;
};

// Threads in groups. A request of the path "/test/held" runs until the gate is open, any other at
// once.
class GroupsUnderTest {
 public:
  GroupsUnderTest(size_t group_count, size_t thread_count)
      : groups_(PlanGroups({}, thread_count, group_count), batches_, 1'000), doors_(group_count) {
    for (const auto& group : groups_) {
      for (size_t i = 0; i < group->plan.thread_count; ++i) {
        threads_.emplace_back([this, home = group.get()] { Serve(home); });
      }
    }
  }
  ~GroupsUnderTest() {
    OpenGate();
    is_stopping_ = true;
    for (Door& door : doors_) door.Wake();
    for (std::thread& thread : threads_) thread.join();
  }

  // One event that brings `count` requests of a kind.
  void Put(size_t group, const std::string& kind, int count) {
    Calls calls;
    for (int i = 0; i < count; ++i) calls.push_back(NewCall("/test/" + kind));
    doors_[group].Put(std::move(calls));
  }
  bool WaitForHeld(int count) {
    return WaitUntil([&] { return held_count_ == count; });
  }
  bool WaitForQuick(int count) {
    return WaitUntil([&] { return quick_count_ == count; });
  }
  void OpenGate() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Once all held requests have ended.
  bool CloseGate() {
    const bool is_empty = WaitUntil([&] { return held_count_ == 0; });
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    return is_empty;
  }

 private:
  std::shared_ptr<RunnableCall> NewCall(const std::string& path) {
    IncomingRequest request{base::ByteBudget::Share()};
    EXPECT_TRUE(request.Begin(&methods_.at(path), {}, 1).ok());
    EXPECT_TRUE(request.AddData("", &space_, 1).ok());
    return std::make_shared<StreamCall>(carrier_, &limits_, ++stream_, request.Take(),
                                        CallAccount());
  }

  template <typename IsTrue>
  bool WaitUntil(const IsTrue& is_true) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), is_true);
  }

  // As RequestThreads::Serve does it if each request is worth a wake-up.
  void Serve(ThreadGroup* home) {
    while (!is_stopping_) {
      if (home->queue.size() > 0 && RunNext(home)) continue;
      const auto [group, has_queued] = groups_.Enter(home, /*can_run=*/true);
      Calls arrived;
      const bool is_woken = doors_[group->index].Wait(!has_queued && !is_stopping_, &arrived);
      group->idle_count.fetch_sub(1);
      group->free_count.fetch_sub(1);
      WakeSpare(*group);
      std::shared_ptr<RunnableCall> next;
      if (!arrived.empty()) {
        next = std::move(arrived.front());
        groups_.Add(group, arrived.begin() + 1, arrived.end(), 1);
        WakeForQueue(group);
      } else if (ThreadGroup* const queued = groups_.FindQueued(home)) {
        RunCharge charge;
        next = queued->queue.Take(1, &charge);
      }
      if (is_woken || has_queued) PassOn();
      if (next != nullptr) Run(*next);
    }
    for (Door& door : doors_) door.Wake();
  }
  void PassOn() {
    for (const auto& group : groups_) {
      WakeForQueue(group.get());
      WakeSpare(*group);
    }
  }
  void WakeSpare(const ThreadGroup& group) {
    if (const ThreadGroup* const spare = groups_.FindSpare(group)) doors_[spare->index].Wake();
  }
  bool RunNext(ThreadGroup* group) {
    RunCharge charge;
    const std::shared_ptr<RunnableCall> call = group->queue.Take(1, &charge);
    if (call == nullptr) return false;
    WakeForQueue(group);
    Run(*call);
    return true;
  }
  void WakeForQueue(ThreadGroup* group) {
    if (group->queue.size() == 0) return;
    if (const ThreadGroup* const idle = groups_.FindIdle(group)) doors_[idle->index].Wake();
  }
  void Run(const RunnableCall& call) {
    const bool is_held = call.path() == "/test/held";
    std::unique_lock lock(mutex_);
    (is_held ? held_count_ : quick_count_) += 1;
    changed_.notify_all();
    if (!is_held) return;
    changed_.wait(lock, [this] { return is_open_; });
    held_count_ -= 1;
    changed_.notify_all();
  }

  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  const CallLimits limits_;
  SilentHandler handler_;
  const std::map<std::string, Method> methods_ = {
      {"/test/held", {"/test/held", &handler_}},
      {"/test/quick", {"/test/quick", &handler_}},
  };
  ReceiveSpace space_;
  int32_t stream_ = -1;
  servable::BatchRegistry batches_;
  ThreadGroups groups_;
  std::vector<Door> doors_;
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int held_count_ = 0;
  int quick_count_ = 0;
  std::vector<std::thread> threads_;
};

TEST(ThreadGroupsTest, AnotherGroupRunsWhatIsQueued) {
  GroupsUnderTest groups(2, 2);
  groups.Put(0, "held", 2);
  EXPECT_TRUE(groups.WaitForHeld(2));
}

TEST(ThreadGroupsTest, AnotherGroupReadsWhatNobodyElseCan) {
  GroupsUnderTest groups(2, 4);
  groups.Put(0, "held", 1);
  groups.Put(0, "held", 1);
  EXPECT_TRUE(groups.WaitForHeld(2));
  groups.Put(0, "held", 1);
  EXPECT_TRUE(groups.WaitForHeld(3));
}

// While all threads but as many as groups are held, wherever they are, everything else goes on.
TEST(ThreadGroupsTest, NoRequestWaitsBesideAnIdleThread) {
  std::mt19937 random(20261129);
  const auto below = [&](size_t end) { return random() % end; };
  for (const size_t group_count : {1, 2, 3, 4}) {
    const size_t thread_count = 2 * group_count + 1;
    GroupsUnderTest groups(group_count, thread_count);
    int quick_count = 0;
    for (int round = 0; round < 300; ++round) {
      int held_count = 0;
      while (held_count < static_cast<int>(thread_count - group_count)) {
        const int most = static_cast<int>(thread_count - group_count) - held_count;
        const int count = 1 + static_cast<int>(below(most));
        groups.Put(below(group_count), "held", count);
        held_count += count;
        for (size_t more = below(3); more > 0; --more, ++quick_count) {
          groups.Put(below(group_count), "quick", 1);
        }
      }
      ASSERT_TRUE(groups.WaitForHeld(held_count)) << round << " of " << group_count;
      for (size_t more = below(12); more > 0; --more) {
        const int count = 1 + static_cast<int>(below(4));
        groups.Put(below(group_count), "quick", count);
        quick_count += count;
      }
      ASSERT_TRUE(groups.WaitForQuick(quick_count)) << round << " of " << group_count;
      groups.OpenGate();
      ASSERT_TRUE(groups.CloseGate());
    }
  }
}

// The limit of a key holds for all queues together.
TEST(ThreadGroupsTest, TooManyOfAKeyIsCountedOverAllQueues) {
  struct KeyedHandler final : testing::WholeAnswers {
    void Answer(RunnableCall*) override {}
    std::string ModelNameOf(const Call&) const override { return "m"; }
    servable::BatchKey BatchKeyOf(const Call&) const override {
      return servable::BatchKeyOf("m", "");
    }
  } handler;
  servable::BatchRegistry batches;
  batches.Add({{servable::BatchKeyOf("m", "")}, 3});
  CallLimits limits;
  limits.batches = &batches;
  const auto carrier = std::make_shared<testing::FakeCarrier>();
  const Method method{"/test/m", &handler};
  ReceiveSpace space;
  ThreadGroups groups(PlanGroups({}, 2, 2), batches, 100);
  const auto add = [&](size_t group) {
    IncomingRequest request{base::ByteBudget::Share()};
    EXPECT_TRUE(request.Begin(&method, {}, 1).ok());
    EXPECT_TRUE(request.AddData("", &space, 1).ok());
    auto call = std::make_shared<StreamCall>(carrier, &limits, 1, request.Take(), CallAccount());
    call->PeekQueueKeys();
    Calls calls = {std::move(call)};
    return groups.Add(&groups[group], calls.begin(), calls.end(), 1).too_many.size();
  };
  EXPECT_EQ(add(0), 0);
  EXPECT_EQ(add(1), 0);
  EXPECT_EQ(add(0), 0);
  EXPECT_EQ(add(1), 1);
}

// Requests join batches while only spare threads are free.
TEST(ThreadGroupsTest, ASpareThreadIsNotFree) {
  const servable::BatchRegistry batches;
  for (const size_t group_count : {1, 2}) {
    std::vector<GroupPlan> plans = PlanGroups({}, 2 * group_count, group_count);
    AddSpareThreads(100, &plans);
    ThreadGroups groups(plans, batches, 100);
    for (size_t i = 0; i < group_count; ++i) {
      EXPECT_FALSE(groups.HasFree(groups[0]));
      groups[i].free_count = 2;
      EXPECT_FALSE(groups.HasFree(groups[0])) << "both could be the spare ones";
      groups[i].free_count = 3;
      EXPECT_TRUE(groups.HasFree(groups[0]));
      groups[i].free_count = 0;
    }
  }
}

TEST(GroupPlan, SpareThreadsStayWithinTheLimit) {
  const auto counts = [](size_t thread_count, size_t group_count, size_t count_max) {
    std::vector<GroupPlan> plans = PlanGroups({}, thread_count, group_count);
    AddSpareThreads(count_max, &plans);
    std::vector<size_t> spare;
    for (const GroupPlan& plan : plans) spare.push_back(plan.spare_count);
    return spare;
  };
  EXPECT_EQ(counts(4, 1, 16), std::vector<size_t>({4}));
  EXPECT_EQ(counts(4, 2, 16), std::vector<size_t>({2, 2}));
  EXPECT_EQ(counts(4, 2, 7), std::vector<size_t>({2, 1}));
  EXPECT_EQ(counts(4, 2, 4), std::vector<size_t>({0, 0}));
  EXPECT_EQ(counts(4, 2, 1), std::vector<size_t>({0, 0})) << "a limit below the threads";
}

}  // namespace
}  // namespace millpond::rpc
