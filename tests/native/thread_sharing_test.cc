// How request threads share themselves among models (thread_shares.h), in one group and in two.
// Runs that hold a thread end when the test says so.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
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

#include "native/base/clock.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/request_threads.h"
#include "native/rpc/stream_call.h"
#include "native/servable/admission.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/units.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::kForeverNs;
using testing::kMs;

constexpr size_t kGroupsMax = 2;

// A network with a queue of requests for each group of threads.
class GroupedRequests final : public EventSource {
 public:
  bool HandleEvents(size_t group, int timeout_ms, ReceiveSpace*,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override {
    Door& door = doors_[group];
    std::unique_lock<std::mutex> lock(mutex_);
    const auto has_event = [&] { return door.wake_count > 0 || !door.calls.empty(); };
    if (timeout_ms != 0) door.changed.wait(lock, has_event);
    const bool is_woken = door.calls.empty() && door.wake_count > 0;
    if (is_woken) --door.wake_count;
    if (!door.calls.empty()) {
      to_run->push_back(std::move(door.calls.front()));
      door.calls.pop_front();
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return is_woken;
  }
  void Wake(size_t group) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++doors_[group].wake_count;
    doors_[group].changed.notify_one();
  }
  void CheckTimes(int64_t) override {}
  void Add(size_t group, std::shared_ptr<RunnableCall> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    doors_[group].calls.push_back(std::move(call));
    doors_[group].changed.notify_one();
  }

 private:
  struct Door {
    std::condition_variable changed;
    std::deque<std::shared_ptr<RunnableCall>> calls;
    int wake_count = 0;
  };

  std::mutex mutex_;
  std::array<Door, kGroupsMax> doors_;
};

// Models whose runs end at once, or sleep, or wait for the test. The path's last part is the model;
// a name that begins with "no-" is none.
class Models final : public testing::WholeAnswers {
 public:
  std::string ModelNameOf(const Call& call) const override {
    return call.path().substr(call.path().rfind('/') + 1);
  }

  // Runs of a model sleep for so long.
  void SetSleep(const std::string& model, int64_t ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_[model].sleep_ns = ns;
  }
  // From here on runs of a model wait for Release.
  void Hold(const std::string& model) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_[model].is_held = true;
  }
  // Lets `count` runs end.
  void Release(const std::string& model, int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_[model].released_count += count;
    changed_.notify_all();
  }
  // Lets all runs end, of now and of later.
  void ReleaseAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [model, state] : states_) state.is_held = false;
    changed_.notify_all();
  }
  [[nodiscard]] bool WaitForBegun(const std::string& model, int64_t count) {
    return WaitUntil([&] { return states_[model].begun_count >= count; });
  }
  [[nodiscard]] bool WaitForEnded(const std::string& model, int64_t count) {
    return WaitUntil([&] { return states_[model].ended_count >= count; });
  }
  int64_t begun_count(const std::string& model) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_[model].begun_count;
  }
  int64_t ended_count(const std::string& model) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_[model].ended_count;
  }

 protected:
  void Answer(RunnableCall* call) override {
    const std::string model = ModelNameOf(*call);
    std::unique_lock<std::mutex> lock(mutex_);
    State& state = states_[model];
    ++state.begun_count;
    changed_.notify_all();
    if (state.sleep_ns > 0) {
      lock.unlock();
      base::SleepNs(state.sleep_ns);
      lock.lock();
    }
    changed_.wait(lock, [&] { return !state.is_held || state.released_count > 0; });
    if (state.is_held) --state.released_count;
    call->Fail({base::Code::kOk, ""});
    ++state.ended_count;
    changed_.notify_all();
  }
  bool HasModel(std::string_view name) const override { return name.substr(0, 3) != "no-"; }

 private:
  struct State {
    std::atomic<int64_t> sleep_ns{0};
    bool is_held = false;
    int64_t released_count = 0;
    int64_t begun_count = 0;
    int64_t ended_count = 0;
  };

  template <typename IsTrue>
  bool WaitUntil(const IsTrue& is_true) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kForeverNs), is_true);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, State> states_;
};

// Threads in so many groups.
class ThreadSharingTest : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr int64_t kThreads = 4;

  void Start(size_t max_count, size_t thread_count = kThreads) {
    threads_ = std::make_unique<RequestThreads>(
        &source_, batches_, PlanGroups({}, thread_count, /*forced_count=*/GetParam()), max_count);
    group_count_ = std::min(GetParam(), thread_count);
    limits_.batches = &batches_;
    limits_.admission = std::make_shared<servable::Admission>();
    threads_->Start();
  }
  void TearDown() override {
    models_.ReleaseAll();
    for (const auto& [model, count] : sent_counts_) {
      EXPECT_TRUE(models_.WaitForEnded(model, count)) << model;
    }
    threads_->Stop();
    EXPECT_TRUE(threads_->Join(kForeverNs));
  }

  void Send(const std::string& model, int count = 1, size_t group = 0) {
    for (int i = 0; i < count; ++i) {
      ++sent_counts_[model];
      source_.Add(group % group_count_, NewCall(model));
    }
  }
  // Sends a request and waits for its answer.
  [[nodiscard]] bool Ask(const std::string& model, size_t group = 0) {
    Send(model, 1, group);
    return models_.WaitForEnded(model, sent_counts_[model]);
  }
  // Lets requests of a slow model and of others come one at a time until they share the threads.
  void Share(const std::vector<std::string>& others) {
    models_.SetSleep("slow", 2 * kMs);
    for (size_t i = 0; i < 5'000 && !threads_->is_shared(); ++i) {
      ASSERT_TRUE(Ask("slow", i));
      for (const std::string& other : others) ASSERT_TRUE(Ask(other, i));
    }
    ASSERT_TRUE(threads_->is_shared());
    models_.SetSleep("slow", 0);
    models_.Hold("slow");
  }

  size_t group_count_ = 1;
  GroupedRequests source_;
  Models models_;
  std::unique_ptr<RequestThreads> threads_;
  std::map<std::string, int64_t> sent_counts_;

 private:
  std::shared_ptr<RunnableCall> NewCall(const std::string& model) {
    const std::lock_guard<std::mutex> lock(methods_mutex_);
    const std::string path = "/test/" + model;
    const Method& method = methods_.try_emplace(path, Method{path, &models_}).first->second;
    IncomingRequest request{base::ByteBudget::Share()};
    EXPECT_TRUE(request.Begin(&method, {}, base::MonotonicNs()).ok());
    EXPECT_TRUE(request.AddData("", &space_, base::MonotonicNs()).ok());
    return std::make_shared<StreamCall>(carrier_, &limits_, stream_ += 2, request.Take(),
                                        CallAccount());
  }

  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  servable::BatchRegistry batches_;
  CallLimits limits_;
  std::mutex methods_mutex_;
  std::map<std::string, Method> methods_;
  ReceiveSpace space_;
  int32_t stream_ = -1;
};

// Requests that come one at a time never wait in a queue. Their models are known all the same.
TEST_P(ThreadSharingTest, ModelsWhoseRequestsPassShareTheThreads) {
  Start(/*max_count=*/4 * kThreads);
  Share({"quick"});
}

// While no run of the slow model ends, the others are answered: one request at a time, and in
// bursts.
TEST_P(ThreadSharingTest, OthersAreAnsweredWhileNoRunOfASlowModelEnds) {
  Start(/*max_count=*/4 * kThreads);
  Share({"quick", "burst"});
  const int64_t ended_count = models_.ended_count("slow");
  for (size_t group = 0; group < GetParam(); ++group) Send("slow", 20, group);
  ASSERT_TRUE(models_.WaitForBegun("slow", sent_counts_["slow"] - 20 * GetParam() + kThreads));
  for (size_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(Ask("quick", i));
    Send("burst", 10, i);
    ASSERT_TRUE(models_.WaitForEnded("burst", sent_counts_["burst"]));
  }
  EXPECT_EQ(models_.ended_count("slow"), ended_count);
}

// At the limit there are no further threads. A thread is kept for the other model.
TEST_P(ThreadSharingTest, OneThreadIsKeptWhereThereAreNoFurtherOnes) {
  Start(/*max_count=*/kThreads);
  Share({"quick"});
  const int64_t begun_count = models_.begun_count("slow");
  for (size_t group = 0; group < GetParam(); ++group) Send("slow", 20, group);
  for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(Ask("quick", i));
  ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + kThreads - 1));
  for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(Ask("quick", i));
  EXPECT_EQ(models_.begun_count("slow"), begun_count + kThreads - 1);
}

// Each end of a run lets one request begin that was held back, in whatever group it waits.
TEST_P(ThreadSharingTest, TheEndOfARunLetsTheNextOneBegin) {
  Start(/*max_count=*/kThreads);
  Share({"quick"});
  const int64_t begun_count = models_.begun_count("slow");
  Send("slow", kThreads - 1, 0);
  ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + kThreads - 1));
  Send("slow", 10, 1);
  // Once the other model is answered, these have been read, and are held back.
  for (size_t i = 0; i < 20; ++i) ASSERT_TRUE(Ask("quick", i));
  for (int64_t i = 1; i <= 10; ++i) {
    models_.Release("slow", 1);
    ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + kThreads - 1 + i));
  }
}

// The thread of a run that ends has a request that needs no place, as next one. A request that was
// held back in another group has the place.
TEST_P(ThreadSharingTest, APlaceIsPassedOnBesideANameThatIsNoModel) {
  Start(/*max_count=*/2, /*thread_count=*/2);
  Share({"quick"});
  models_.Hold("quick");
  const int64_t begun_count = models_.begun_count("slow");
  const int64_t quick_count = models_.begun_count("quick");
  Send("slow", 1, 0);
  ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + 1));
  Send("quick", 1, 1);
  ASSERT_TRUE(models_.WaitForBegun("quick", quick_count + 1));
  // All threads are busy. The first request of a group is read by an acceptor.
  for (int64_t i = 1; i <= 20; ++i) {
    Send("slow", 1, 1);
    Send("no-model", 5, 0);
    base::SleepNs(RequestThreads::kStallNs);
    models_.Release("slow", 1);
    ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + 1 + i));
  }
}

// The watchdog has started another thread meanwhile, so the thread of a run that ends leaves.
TEST_P(ThreadSharingTest, AThreadThatLeavesPassesItsPlaceOn) {
  Start(/*max_count=*/1, /*thread_count=*/1);
  Share({"quick"});
  const int64_t begun_count = models_.begun_count("slow");
  Send("slow", 10);
  for (int64_t i = 1; i < 10; ++i) {
    ASSERT_TRUE(models_.WaitForBegun("slow", begun_count + i));
    ASSERT_TRUE(Ask("quick"));
    EXPECT_EQ(models_.begun_count("slow"), begun_count + i);
    models_.Release("slow", 1);
  }
}

// Names that are no models are answered, and share no threads.
TEST_P(ThreadSharingTest, NamesThatAreNoModelsShareNothing) {
  Start(/*max_count=*/4 * kThreads);
  models_.SetSleep("slow", 2 * kMs);
  for (size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Ask("slow", i));
    ASSERT_TRUE(Ask("no-" + std::to_string(i), i));
    EXPECT_FALSE(threads_->is_shared());
  }
}

// Over random requests: all are answered.
TEST_P(ThreadSharingTest, NoRequestIsForgotten) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    if (threads_ != nullptr) TearDown();
    std::mt19937 random(seed);
    Start(/*max_count=*/kThreads << (seed % 3));
    models_.SetSleep("slow", 3 * kMs);
    models_.SetSleep("other", kMs / 2);
    const std::vector<std::string> names = {"slow", "slow", "other", "quick", "no-model"};
    for (int i = 0; i < 300; ++i) {
      Send(names[random() % names.size()], 1 + static_cast<int>(random() % 6), random());
      if (random() % 4 == 0) base::SleepNs(static_cast<int64_t>(random() % (4 * kMs)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ThreadSharingTest, ::testing::Range<size_t>(1, kGroupsMax + 1));

}  // namespace
}  // namespace millpond::rpc
