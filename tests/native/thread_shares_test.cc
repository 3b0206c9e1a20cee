// The promise of thread_shares.h over random models, arrivals, costs and groups: the queues of all
// groups, and threads that take requests as RequestThreads does, on a clock of the test's own.

#include "native/rpc/thread_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/incoming_request.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/stream_call.h"
#include "native/rpc/thread_groups.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/threads.h"
#include "tests/native/units.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::kMs;

ActiveModels ModelsOfKeys(int64_t count, bool has_long_run) {
  ActiveModels models;
  models.has_long_run = has_long_run;
  for (int64_t i = 0; i < count; ++i) models.keys.insert(ModelKeyOf(std::to_string(i)));
  return models;
}

bool IsModel(std::string_view name) { return name.substr(0, 3) != "no-"; }

// The path's last part names the model. What begins with "no-" is none.
struct NamedHandler final : testing::WholeAnswers {
  void Answer(RunnableCall*) override {}
  std::string ModelNameOf(const Call& call) const override {
    return call.path().substr(call.path().rfind('/') + 1);
  }
  bool HasModel(std::string_view name) const override { return IsModel(name); }
};

// Threads in groups. A thread waits until it is woken for its place, and then looks at all queues.
class Threads {
 public:
  Threads(size_t group_count, int64_t regular_count, int64_t spare_count, unsigned seed)
      : counts_{regular_count, spare_count, regular_count + spare_count},
        groups_(PlanGroups({}, static_cast<size_t>(regular_count), group_count), batches_, 1'000),
        random_(seed) {
    for (int64_t i = 0; i < counts_.max_count; ++i) {
      threads_.push_back({&groups_[static_cast<size_t>(i) % groups_.size()]});
      Wait(&threads_.back());
    }
  }

  // Lets a model be known to one group by a run of its cost, which passed the queue.
  void AddModel(const std::string& model, int64_t cost_ns) {
    costs_ns_[model] = cost_ns;
    AnyGroup().queue.NotePassed(handler_.KeyOf(model), cost_ns, now_ns_);
  }
  void Limit() { groups_.LimitThreads(counts_, {}, now_ns_); }
  // A request comes to a group. An idle thread there reads it, or else a busy one that queues it.
  void Come(const std::string& model) { ComeTo(&AnyGroup(), model); }
  void ComeTo(ThreadGroup* group, const std::string& model) {
    ++waiting_[model];
    Thread* const reader = FindIdle(*group);
    auto call = NewCall(model);
    if (reader == nullptr) {
      Add(group, std::move(call));
    } else {
      Leave(reader);
      RunCharge charge;
      if (group->queue.TryPass(call.get(), now_ns_, &charge)) {
        Settle(reader);
        reader->charging = group;
        reader->charge = std::move(charge);
        Begin(reader, model);
      } else {
        Add(group, std::move(call));
        Serve(reader);
      }
    }
    Wake();
  }
  // Lets time pass, and runs end.
  void Pass(int64_t ns) {
    const int64_t until_ns = now_ns_ + ns;
    while (Thread* const first = FirstToEnd()) {
      if (first->end_ns > until_ns) break;
      now_ns_ = first->end_ns;
      End(first);
      Wake();
    }
    now_ns_ = until_ns;
  }
  void EndAll() {
    while (Thread* const first = FirstToEnd()) Pass(first->end_ns - now_ns_);
  }

  ThreadGroups& groups() { return groups_; }
  int64_t waiting_count(const std::string& model) { return waiting_[model]; }
  int64_t held_count(const std::string& model) { return held_[model]; }
  // The threads that all models hold, and those that run requests of names that are no models.
  int64_t held_count() const { return held_count_; }
  int64_t held_by_none_count() const { return held_by_none_count_; }
  // The most threads that all models held before a run began whose model held this and more.
  int64_t held_max_beyond(int64_t own_max) const {
    int64_t most = 0;
    for (const auto& [own, all] : begun_) most = own >= own_max ? std::max(most, all) : most;
    return most;
  }

 private:
  struct Thread {
    ThreadGroup* home;
    ThreadGroup* place = nullptr;  // in which it waits
    bool is_busy = false;
    std::string model = {};
    int64_t end_ns = 0;
    RunCharge charge = {};
    ThreadGroup* charging = nullptr;
    const ModelThreads* freed = nullptr;
  };

  ThreadGroup& AnyGroup() { return groups_[random_() % groups_.size()]; }
  std::shared_ptr<RunnableCall> NewCall(const std::string& model) {
    const std::string path = "/test/" + model;
    methods_[path] = {path, &handler_};
    IncomingRequest request{base::ByteBudget::Share()};
    EXPECT_TRUE(request.Begin(&methods_[path], {}, now_ns_).ok());
    EXPECT_TRUE(request.AddData("", &space_, now_ns_).ok());
    auto call =
        std::make_shared<StreamCall>(carrier_, &limits_, ++stream_, request.Take(), CallAccount());
    call->PeekQueueKeys();
    return call;
  }
  void Add(ThreadGroup* group, std::shared_ptr<RunnableCall> call) {
    std::vector<std::shared_ptr<RunnableCall>> calls = {std::move(call)};
    (void)groups_.Add(group, calls.begin(), calls.end(), now_ns_);
    WakeForQueue(group);
  }
  Thread* FindIdle(const ThreadGroup& place) {
    const auto found = std::find_if(threads_.begin(), threads_.end(),
                                    [&](const Thread& thread) { return thread.place == &place; });
    return found == threads_.end() ? nullptr : &*found;
  }
  Thread* FirstToEnd() {
    Thread* first = nullptr;
    for (Thread& thread : threads_) {
      if (thread.is_busy && (first == nullptr || thread.end_ns < first->end_ns)) first = &thread;
    }
    return first;
  }

  // --- as RequestThreads has it, if each request is worth a wake-up ---

  void WakeForQueue(ThreadGroup* group) {
    if (group->queue.ready_count() == 0) return;
    if (ThreadGroup* const idle = groups_.FindIdle(group)) wakes_.push_back(idle);
  }
  void Wake() {
    while (!wakes_.empty()) {
      ThreadGroup* const place = wakes_.back();
      wakes_.pop_back();
      Thread* const thread = FindIdle(*place);
      if (thread == nullptr) continue;
      Leave(thread);
      Serve(thread);
    }
  }
  void Wait(Thread* thread) {
    const auto [place, has_queued] = groups_.Enter(thread->home, /*can_run=*/true);
    thread->place = place;
    if (!has_queued) return;
    Leave(thread);
    ThreadGroup* const queued = groups_.FindQueued(thread->home);
    if (queued == nullptr || !Take(thread, queued)) Wait(thread);
    for (const auto& group : groups_) WakeForQueue(group.get());
  }
  void Leave(Thread* thread) {
    thread->place->idle_count.fetch_sub(1);
    thread->place->free_count.fetch_sub(1);
    thread->place = nullptr;
  }
  void Serve(Thread* thread) {
    if (thread->freed != nullptr) thread->home->queue.Recount();
    if (thread->home->queue.ready_count() > 0 && Take(thread, thread->home)) {
      WakeForQueue(thread->home);
      const ModelThreads* const freed = std::exchange(thread->freed, nullptr);
      if (freed == nullptr || freed == thread->charge.threads) return;
      groups_.RecountHeldBack(thread->home);
      for (const auto& group : groups_) WakeForQueue(group.get());
      return;
    }
    if (std::exchange(thread->freed, nullptr) != nullptr) groups_.RecountHeldBack(thread->home);
    Wait(thread);
  }
  void Settle(Thread* thread) {
    const RunCharge charge = std::exchange(thread->charge, {});
    if (charge.model != kNoModelKey) thread->charging->queue.Settle(charge);
  }
  bool Take(Thread* thread, ThreadGroup* group) {
    if (thread->charging != group) Settle(thread);
    thread->charging = group;
    const auto call = group->queue.Take(now_ns_, &thread->charge);
    if (call != nullptr) Begin(thread, call->PeekModelName());
    return call != nullptr;
  }
  void Begin(Thread* thread, const std::string& model) {
    if (IsModel(model)) begun_.emplace_back(held_[model], held_count_);
    const double ns = static_cast<double>(costs_ns_.at(model));
    thread->charge.took_ns =
        static_cast<int64_t>(ns * std::uniform_real_distribution<double>(0.5, 1.5)(random_));
    thread->end_ns = now_ns_ + thread->charge.took_ns;
    thread->is_busy = true;
    thread->model = model;
    --waiting_[model];
    ++held_[model];
    ++(IsModel(model) ? held_count_ : held_by_none_count_);
  }
  void End(Thread* thread) {
    thread->is_busy = false;
    --held_[thread->model];
    --(IsModel(thread->model) ? held_count_ : held_by_none_count_);
    thread->freed = groups_.Release(&thread->charge);
    Serve(thread);
  }

  const ServingThreads counts_;
  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  const CallLimits limits_;
  NamedHandler handler_;
  std::map<std::string, Method> methods_;
  ReceiveSpace space_;
  int32_t stream_ = -1;
  servable::BatchRegistry batches_;
  ThreadGroups groups_;
  std::mt19937 random_;
  std::vector<Thread> threads_;
  std::vector<ThreadGroup*> wakes_;
  int64_t now_ns_ = 100'000 * kMs;
  std::map<std::string, int64_t> costs_ns_;
  std::map<std::string, int64_t> waiting_;
  std::map<std::string, int64_t> held_;
  int64_t held_count_ = 0;
  int64_t held_by_none_count_ = 0;
  std::vector<std::pair<int64_t, int64_t>> begun_;  // what the model, and all, held before
};

// --- The decision ---

TEST(ThreadSharesTest, EachModelHasAnEvenShareOfTheSpareThreads) {
  const ServingThreads threads{8, 8, 32};
  const ThreadLimits limits = ThreadShares::Decide(threads, ModelsOfKeys(3, true));
  EXPECT_TRUE(limits.is_shared);
  EXPECT_EQ(limits.any_max, 8);
  EXPECT_EQ(limits.own_max, 2);
  EXPECT_EQ(ThreadShares::Decide(threads, ModelsOfKeys(100, true)).own_max, 1);
}

TEST(ThreadSharesTest, OneModelOrShortRunsAreNotLimited) {
  const ServingThreads threads{8, 8, 32};
  EXPECT_FALSE(ThreadShares::Decide(threads, ModelsOfKeys(1, true)).is_shared);
  EXPECT_FALSE(ThreadShares::Decide(threads, ModelsOfKeys(3, false)).is_shared);
}

TEST(ThreadSharesTest, WithoutSpareThreadsOneIsKept) {
  const ThreadLimits limits = ThreadShares::Decide({4, 0, 4}, ModelsOfKeys(2, true));
  EXPECT_EQ(limits.any_max, 3);
  EXPECT_EQ(limits.own_max, 1);
  EXPECT_EQ(ThreadShares::Decide({1, 0, 1}, ModelsOfKeys(2, true)).any_max, 1);
}

TEST(ThreadSharesTest, OtherThreadsServeInTheSteadOfHeldUpOnes) {
  EXPECT_EQ(ThreadShares::Decide({4, 4, 16, /*held_up_count=*/3}, ModelsOfKeys(2, true)).any_max,
            7);
  EXPECT_EQ(ThreadShares::Decide({4, 4, 16, /*held_up_count=*/30}, ModelsOfKeys(2, true)).any_max,
            12);
  EXPECT_EQ(
      ThreadShares::Decide({4, 4, 16, 0, /*uncounted_count=*/3}, ModelsOfKeys(2, true)).any_max, 1);
}

// They count for the limit, so no other thread can be started in the place of these.
TEST(ThreadSharesTest, ThreadsThatGiveWayAreNotShared) {
  using AnyAndOwn = std::pair<int64_t, int64_t>;
  const auto decide = [](int64_t lowered_count) -> AnyAndOwn {
    const ServingThreads threads{2, 2, 8, 0, 0, lowered_count};
    const ThreadLimits limits = ThreadShares::Decide(threads, ModelsOfKeys(2, true));
    return {limits.any_max, limits.own_max};
  };
  EXPECT_EQ(decide(4), AnyAndOwn(2, 1));
  EXPECT_EQ(decide(5), AnyAndOwn(2, 1));
  EXPECT_EQ(decide(6), AnyAndOwn(1, 1)) << "one of the two that serve is kept";
  EXPECT_EQ(decide(8), AnyAndOwn(0, 1));
}

// --- The promise ---

// Over all groups: a model that holds less than its share waits for no thread, and no thread of the
// steady state is idle while a request waits. A model that holds its share takes a thread only of
// those of the steady state. Names that are no models change nothing.
TEST(ThreadSharesTest, AModelBelowItsShareWaitsForNoThread) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % end); };
    const size_t group_count = 1 + seed % 4;
    const auto regular_count = static_cast<int64_t>(group_count) + below(8);
    const bool is_kept = regular_count >= 2 && below(3) == 0;
    const int64_t model_count = is_kept ? 2 : 2 + below(3);
    const int64_t spare_count = is_kept ? 0 : model_count - 1 + below(8);
    const int64_t any_max = is_kept ? regular_count - 1 : regular_count;
    const int64_t own_max = std::max<int64_t>(spare_count / model_count, 1);
    Threads threads(group_count, regular_count, spare_count, seed);
    std::vector<std::string> models;
    for (int64_t i = 0; i < model_count; ++i) {
      models.push_back("m" + std::to_string(i));
      threads.AddModel(models.back(), i == 0 ? 20 * kMs : 10'000 + below(2 * kMs));
    }
    for (int i = 0; i < 5; ++i) threads.AddModel("no-" + std::to_string(i), 10'000);
    threads.Limit();
    ASSERT_TRUE(threads.groups().is_shared());
    for (int step = 0; step < 600; ++step) {
      // The first model is busy. Other models send now and then, one by one or in bursts.
      threads.Come(models[0]);
      const std::string& other = models[static_cast<size_t>(1 + below(model_count - 1))];
      const int64_t kind = below(16);
      for (int64_t i = kind == 0 ? below(12) : (kind < 4 ? 1 : 0); i > 0; --i) threads.Come(other);
      if (below(4) == 0) threads.Come("no-" + std::to_string(below(5)));
      if (below(50) == 0) threads.Limit();
      for (const std::string& model : models) {
        // For some µs there is a thread less than models were promised.
        if (threads.waiting_count(model) == 0 || threads.held_by_none_count() > 0) continue;
        ASSERT_GE(threads.held_count(model), own_max) << model << ", seed " << seed;
        ASSERT_GE(threads.held_count(), any_max) << model << ", seed " << seed;
      }
      threads.Pass(below(kMs));
    }
    threads.EndAll();
    for (const std::string& model : models) ASSERT_EQ(threads.waiting_count(model), 0);
    EXPECT_LT(threads.held_max_beyond(own_max), any_max) << seed;
    threads.Pass(ThreadShares::kSharesNs);
    threads.Limit();
    EXPECT_FALSE(threads.groups().is_shared());
  }
}

// Each of these was wrong while every queue decided for itself.
class TwoGroupsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRegular = 4;
  static constexpr int64_t kSpare = 4;

  void Share() {
    threads_.AddModel("slow", 20 * kMs);
    threads_.AddModel("quick", kMs / 10);
    threads_.Limit();
    ASSERT_TRUE(threads_.groups().is_shared());
  }
  void ComeTo(size_t group, const std::string& model, int count) {
    for (int i = 0; i < count; ++i) threads_.ComeTo(&threads_.groups()[group], model);
  }

  Threads threads_{2, kRegular, kSpare, /*seed=*/1};
};

TEST_F(TwoGroupsTest, ModelsOfDifferentGroupsShareTheThreads) {
  threads_.groups()[0].queue.NotePassed(ModelKeyOf("slow"), 20 * kMs, 100'000 * kMs);
  threads_.groups()[1].queue.NotePassed(ModelKeyOf("quick"), kMs / 10, 100'000 * kMs);
  threads_.Limit();
  EXPECT_TRUE(threads_.groups().is_shared());
}

TEST_F(TwoGroupsTest, TheLimitHoldsForAllQueuesTogether) {
  Share();
  ComeTo(0, "slow", 10);
  ComeTo(1, "slow", 10);
  EXPECT_EQ(threads_.held_count("slow"), kRegular);
  ComeTo(1, "quick", 10);
  EXPECT_EQ(threads_.held_count("quick"), kSpare / 2);
}

// The runs of one group end, and the requests of the other one wait.
TEST_F(TwoGroupsTest, TheEndOfARunLetsAnotherGroupsRequestsPass) {
  Share();
  ComeTo(0, "slow", kRegular);
  ComeTo(1, "slow", 1);
  EXPECT_EQ(threads_.held_count("slow"), kRegular);
  EXPECT_EQ(threads_.groups()[1].queue.ready_count(), 0U);
  threads_.EndAll();
  EXPECT_EQ(threads_.waiting_count("slow"), 0);
}

TEST_F(TwoGroupsTest, NamesThatAreNoModelsHoldNothing) {
  threads_.AddModel("slow", 20 * kMs);
  for (int i = 0; i < 50; ++i) {
    const std::string name = "no-" + std::to_string(i);
    threads_.AddModel(name, 10'000);
    ComeTo(i % 2, name, 1);
  }
  threads_.Limit();
  EXPECT_FALSE(threads_.groups().is_shared()) << "there is one model";
  threads_.EndAll();
  Share();
  ComeTo(0, "slow", 10);
  EXPECT_EQ(threads_.held_count("slow"), kRegular);
  ComeTo(1, "no-1", 2);
  EXPECT_EQ(threads_.held_count("no-1"), 2) << "they need no place";
  ComeTo(1, "quick", 10);
  EXPECT_EQ(threads_.held_count("quick"), kSpare / 2);
}

// --- Threads at once ---

// A model that never wants more than its share is never refused one, whatever the others do, and
// all together hold no more threads than there are.
TEST(ThreadSharesTest, ThreadsAtOnceKeepThePromise) {
  constexpr int64_t kAnyMax = 2;
  constexpr int64_t kOwnMax = 1;
  constexpr int kModels = 3;
  ThreadShares shares;
  shares.Limit({true, kAnyMax, kOwnMax});
  const std::shared_ptr<ModelThreads> modest = shares.ThreadsOf(ModelKeyOf("modest"));
  std::vector<std::shared_ptr<ModelThreads>> busy;
  for (int i = 1; i < kModels; ++i) busy.push_back(shares.ThreadsOf(ModelKeyOf(std::to_string(i))));
  std::atomic<int64_t> held_count{0};
  std::atomic<int64_t> most{0};
  const auto hold = [&](ModelThreads* model) {
    if (!shares.TryTake(model)) return false;
    const int64_t held = held_count.fetch_add(1) + 1;
    for (int64_t seen = most; held > seen && !most.compare_exchange_weak(seen, held);) {
    }
    held_count.fetch_sub(1);
    (void)shares.Release(model);
    return true;
  };
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 30'000; ++i) {
      if (thread == 0) ASSERT_TRUE(hold(modest.get())) << i;
      if (thread > 0) (void)hold(busy[static_cast<size_t>(thread + i) % busy.size()].get());
    }
  });
  EXPECT_LE(most, kAnyMax + (kModels - 1) * kOwnMax);
  EXPECT_EQ(shares.held_count(), 0);
  for (const auto& model : busy) EXPECT_EQ(model->held_count, 0);
}

}  // namespace
}  // namespace millpond::rpc
