// The threads that run requests, over a network that does what the test says.

#include "native/rpc/request_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/base/giving_way.h"
#include "native/base/other_thread.h"
#include "native/base/thread_cores.h"
#include "native/metrics/request_statistics.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/predict_service.h"
#include "native/rpc/stream_call.h"
#include "native/servable/batching_servable.h"
#include "native/servable/serving_map.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_http2.h"
#include "tests/native/row_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/units.h"

namespace millpond::rpc {
namespace {

// Once both threads wait, one of them gets the first request, and the other waits on, as one that
// has no core to run on. A look gets the second request, and so does a wait of both threads.
class TwoRequests final : public EventSource {
 public:
  TwoRequests(std::shared_ptr<RunnableCall> first, std::shared_ptr<RunnableCall> second)
      : calls_{std::move(first), std::move(second)} {}

  bool HandleEvents(size_t, int timeout_ms, ReceiveSpace*,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (timeout_ms != 0) {
      waiting_count_ += 1;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_over_ || (waiting_count_ == 2 && !calls_.empty()); });
      waiting_count_ -= 1;
    }
    if (!calls_.empty()) {
      to_run->push_back(std::move(calls_.front()));
      calls_.pop_front();
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return false;
  }
  void Wake(size_t) override { ++wake_count_; }
  void CheckTimes(int64_t) override {}
  int wake_count() const { return wake_count_; }
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<RunnableCall>> calls_;
  int waiting_count_ = 0;
  bool is_over_ = false;
  std::atomic<int> wake_count_{0};
};

// Gives each request that the test adds to a thread that waits or looks. As the network does, it
// gives one to a thread that waits, and several to one that looks.
class AddedRequests final : public EventSource {
 public:
  bool HandleEvents(size_t, int timeout_ms, ReceiveSpace*,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (timeout_ms != 0) {
      changed_.wait(lock, [this] { return wake_count_ > 0 || !calls_.empty(); });
      if (wake_count_ > 0) --wake_count_;
    }
    for (int i = 0; i < (timeout_ms < 0 ? 1 : 16) && !calls_.empty(); ++i) {
      to_run->push_back(std::move(calls_.front()));
      calls_.pop_front();
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return false;
  }
  void Wake(size_t) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++wake_count_;
    changed_.notify_one();
  }
  void CheckTimes(int64_t) override {}
  void Add(std::shared_ptr<RunnableCall> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<RunnableCall>> calls_;
  int wake_count_ = 0;
};

class RequestThreadsTest : public ::testing::Test {
 protected:
  RequestThreadsTest() {
    auto batching = std::make_unique<servable::BatchingServable>(
        std::make_unique<testing::RowServable>(servable::ServableId{"m", 1},
                                               [this](const testing::RowRun& run) {
                                                 row_counts_.push_back(run.rows);
                                                 return base::Status();
                                               }),
        servable::BatchSettings());
    const tensor::Signature& signature = batching->signatures().find("serving_default")->second;
    batching->LearnCost(signature, 4'096, 1);
    batching->TurnOn(signature, {2, 2, false});
    const auto entry = std::make_shared<servable::ServableEntry>(std::move(batching));
    EXPECT_TRUE(servable::PublishHighest(map_, entry).ok());
    limits_.admission = std::make_shared<servable::Admission>();
    limits_.batches = &map_.batches();
    limits_.is_cut_short = &is_cut_short_;
  }

  std::shared_ptr<RunnableCall> NewRequest(int32_t stream, int64_t x,
                                           const std::string& model = "m") {
    const std::string bytes(reinterpret_cast<const char*>(&x), sizeof x);
    const std::string message = testing::PredictMessage(testing::ModelSpecMessage(model),
                                                        {{"x", testing::kRowsMark + bytes}});
    IncomingRequest request{base::ByteBudget::Share(nullptr)};
    EXPECT_TRUE(request.Begin(&method_, {}, 1).ok());
    EXPECT_TRUE(request.AddData(testing::GrpcMessage(message), &space_, 1).ok());
    auto call = std::make_shared<StreamCall>(carrier_, &limits_, stream, request.Take(),
                                             CallAccount(&counts_, &open_bytes_, 0));
    carrier_->Add(stream, call);
    EXPECT_TRUE(call->Arrive());
    return call;
  }

  std::vector<int64_t> row_counts_;  // of each run
  servable::ServingMap map_;
  const metrics::RequestStatistics statistics_{/*now_ns=*/0};
  PredictHandler predict_{{&map_, &statistics_, nullptr}, tensor::TensorEncoding::kTypedFields};
  const Method method_{"/tensorflow.serving.PredictionService/Predict", &predict_};
  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  std::atomic<bool> is_cut_short_{false};
  CallCounts counts_;
  std::atomic<int64_t> open_bytes_{0};
  CallLimits limits_;
  ReceiveSpace space_;
};

TEST_F(RequestThreadsTest, ABatchTakesWhatTheNetworkHoldsBesideAFreeThread) {
  TwoRequests source(NewRequest(1, 10), NewRequest(3, 20));
  RequestThreads threads(&source, map_.batches(), PlanGroups({}, 2), 2);
  threads.Start();
  while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  // The other thread would find nothing.
  EXPECT_EQ(source.wake_count(), 0);
  threads.Stop();
  source.End();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
  ASSERT_FALSE(row_counts_.empty());
  EXPECT_EQ(row_counts_.front(), 2);
  EXPECT_EQ(carrier_->answers().size(), 2);
}

TEST_F(RequestThreadsTest, WhatABatchLeavesWakesAFreeThread) {
  TwoRequests source(NewRequest(1, 10), NewRequest(3, 20, "another"));
  RequestThreads threads(&source, map_.batches(), PlanGroups({}, 2), 2);
  threads.Start();
  while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  EXPECT_EQ(source.wake_count(), 1);
  threads.Stop();
  source.End();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
  EXPECT_EQ(row_counts_, std::vector<int64_t>{1});
}

// Without a spare thread the first run would never end: the limit allows no thread in its stead.
TEST_F(RequestThreadsTest, ASpareThreadServesWhileAnotherWaits) {
  std::atomic<int> under_way_count{0};
  auto meeting = std::make_unique<testing::RowServable>(servable::ServableId{"meeting", 1},
                                                        [&](const testing::RowRun&) {
                                                          ++under_way_count;
                                                          while (under_way_count < 2)
                                                            std::this_thread::yield();
                                                          return base::Status();
                                                        });
  const auto entry = std::make_shared<servable::ServableEntry>(std::move(meeting));
  ASSERT_TRUE(servable::PublishHighest(map_, entry).ok());
  AddedRequests source;
  std::vector<GroupPlan> plans = PlanGroups({}, 1);
  AddSpareThreads(/*count_max=*/2, &plans);
  RequestThreads threads(&source, map_.batches(), plans, /*max_count=*/1);
  threads.Start();
  source.Add(NewRequest(1, 10, "meeting"));
  source.Add(NewRequest(3, 20, "meeting"));
  while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  threads.Stop();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
  EXPECT_EQ(carrier_->answers().size(), 2);
}

// Else requests for any number of names would count as models that share the threads.
TEST_F(RequestThreadsTest, NamesThatAreNoModelsShareOneQueue) {
  const auto key_of = [this](const std::string& model) {
    const std::shared_ptr<RunnableCall> call = NewRequest(1, 10, model);
    call->PeekQueueKeys();
    return call->model_key();
  };
  EXPECT_EQ(key_of("m"), ModelKeyOf("m"));
  EXPECT_EQ(key_of("no-model"), kNoSuchModelKey);
  EXPECT_EQ(key_of("another"), kNoSuchModelKey);
  ASSERT_TRUE(map_.Retire("m", 1, {}).ok());
  EXPECT_EQ(key_of("m"), kNoSuchModelKey);
}

// --- Runs that last ---

// A further model "greedy" has runs that compute until the test releases them, and "modest" has
// usual ones. Each run notes its thread and its priority.
class GreedyRunsTest : public RequestThreadsTest {
 protected:
  struct Seen {
    pid_t thread = 0;
    int nice = -1;
  };

  GreedyRunsTest() {
    Publish("greedy", [this](const testing::RowRun&) {
      under_way_count_ += 1;
      if (keeps_priority_) KeepPriority();
      while (Nice() == usual_nice_ && !are_released_) {
      }
      NoteNice();
      lowered_count_ += 1;
      while (!are_released_) std::this_thread::yield();
      Note(0);
      return base::Status();
    });
    Publish("modest", [this](const testing::RowRun& run) {
      Note(run.values.front());
      return base::Status();
    });
  }
  void SetUp() override {
    bool is_allowed = false;
    std::thread([&] {
      is_allowed = base::LowerThread(base::CurrentThreadId(), 1).ok() && Nice() > usual_nice_;
    }).join();
    if (!is_allowed) GTEST_SKIP() << "this kernel lowers no threads";
  }

  // The nice value of the calling thread.
  static int Nice() {
    return getpriority(PRIO_PROCESS, static_cast<id_t>(base::CurrentThreadId()));
  }
  // Adds a request to "modest" and waits for its answer. Returns its run.
  Seen RunModest(AddedRequests* source) {
    const int32_t stream = NextStream();
    source->Add(NewRequest(stream, stream, "modest"));
    while (limits_.admission->in_flight_count() > greedy_count_) std::this_thread::yield();
    return SeenOf(stream);
  }
  // Returns the run of a number; the greedy ones have 0.
  Seen SeenOf(int64_t number) {
    const std::lock_guard<std::mutex> lock(seen_mutex_);
    return seen_.at(number);
  }
  void AddGreedy(AddedRequests* source) {
    greedy_count_ += 1;
    source->Add(NewRequest(NextStream(), 1, "greedy"));
  }
  void WaitUntilLowered(int count) {
    while (lowered_count_ < count) std::this_thread::yield();
  }
  void Release() {
    are_released_ = true;
    greedy_count_ = 0;
    while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  }
  // Lets runs compute again, as at the begin.
  void Restart() {
    are_released_ = false;
    under_way_count_ = 0;
  }

  const int usual_nice_ = Nice();
  std::atomic<bool> keeps_priority_{false};
  std::atomic<int> kept_nice_{-1};  // after much longer than a run may compute
  std::atomic<int> under_way_count_{0};
  std::set<int> greedy_nices_;  // read it when no run begins
  int64_t greedy_count_ = 0;    // requests to "greedy" that are not answered

 private:
  void Publish(const std::string& model, testing::RowServable::Watch watch) {
    auto servable = std::make_unique<testing::RowServable>(servable::ServableId{model, 1}, watch);
    const auto entry = std::make_shared<servable::ServableEntry>(std::move(servable));
    EXPECT_TRUE(servable::PublishHighest(map_, entry).ok());
  }
  void KeepPriority() {
    const base::KeptPriority kept;
    const int64_t until_ns = base::ThreadCpuNs(pthread_self()) + 300'000'000;
    while (base::ThreadCpuNs(pthread_self()) < until_ns) {
    }
    kept_nice_ = Nice();
  }
  void Note(int64_t number) {
    const std::lock_guard<std::mutex> lock(seen_mutex_);
    seen_[number] = {base::CurrentThreadId(), Nice()};
  }
  void NoteNice() {
    const std::lock_guard<std::mutex> lock(seen_mutex_);
    greedy_nices_.insert(Nice());
  }
  int32_t NextStream() { return stream_ += 2; }

  std::mutex seen_mutex_;
  std::map<int64_t, Seen> seen_;
  std::atomic<int> lowered_count_{0};
  std::atomic<bool> are_released_{false};
  int32_t stream_ = -1;
};

TEST_F(GreedyRunsTest, GiveWayToOthersAndTheirThreadServesNoOther) {
  AddedRequests source;
  RequestThreads threads(&source, map_.batches(), PlanGroups({}, 1), 4);
  threads.Start();
  EXPECT_EQ(RunModest(&source).nice, usual_nice_);
  AddGreedy(&source);
  WaitUntilLowered(1);
  EXPECT_EQ(RunModest(&source).nice, usual_nice_);
  Release();
  EXPECT_GT(SeenOf(0).nice, usual_nice_);
  for (int i = 0; i < 20; ++i) {
    const Seen run = RunModest(&source);
    EXPECT_NE(run.thread, SeenOf(0).thread);
    EXPECT_EQ(run.nice, usual_nice_);
  }
  threads.Stop();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
}

TEST_F(GreedyRunsTest, AThreadThatOthersWaitForIsNotLowered) {
  AddedRequests source;
  RequestThreads threads(&source, map_.batches(), PlanGroups({}, 1), 4);
  threads.Start();
  (void)RunModest(&source);
  keeps_priority_ = true;
  AddGreedy(&source);
  WaitUntilLowered(1);
  EXPECT_EQ(kept_nice_, usual_nice_);
  Release();
  EXPECT_GT(SeenOf(0).nice, usual_nice_) << "it was lowered afterwards";
  threads.Stop();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
}

// The share of long runs is three of four threads: one stays for the other models.
TEST_F(GreedyRunsTest, LeaveThreadsToOtherModels) {
  AddedRequests source;
  RequestThreads threads(&source, map_.batches(), PlanGroups({}, 1), 4);
  threads.Start();
  (void)RunModest(&source);
  for (int i = 0; i < 5; ++i) AddGreedy(&source);
  WaitUntilLowered(3);
  for (int i = 0; i < 20; ++i) (void)RunModest(&source);
  EXPECT_EQ(under_way_count_, 3);
  EXPECT_EQ(greedy_nices_.size(), 3) << "each further run is lowered more";
  Release();
  threads.Stop();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
}

// A model may have all threads before the watchdog sees its runs.
TEST_F(GreedyRunsTest, WithAllThreadsOneIsLeftToOtherModels) {
  for (const int count : {1, 2}) {
    AddedRequests source;
    const auto thread_count = static_cast<size_t>(count);
    RequestThreads threads(&source, map_.batches(), PlanGroups({}, thread_count), thread_count);
    for (int i = 0; i < count + 2; ++i) AddGreedy(&source);
    threads.Start();
    for (int i = 0; i < 20; ++i) (void)RunModest(&source);
    EXPECT_LE(under_way_count_, count) << "the extra thread runs none of them";
    Release();
    threads.Stop();
    EXPECT_TRUE(threads.Join(4 * testing::kSecond));
    Restart();
  }
}

// A network that gives a group's thread several requests at once. It can hold wakes back.
class GivenRequests final : public EventSource {
 public:
  using Calls = std::vector<std::shared_ptr<RunnableCall>>;

  bool HandleEvents(size_t group, int timeout_ms, ReceiveSpace*, Calls* to_run,
                    std::atomic<int>* idle_count) override {
    std::unique_lock<std::mutex> lock(mutex_);
    bool is_woken = false;
    if (timeout_ms != 0) {
      changed_.wait(lock, [&] {
        is_woken = !holds_wakes_ && woken_.erase(group) > 0;
        return is_over_ || is_woken || given_.count(group) > 0;
      });
      if (given_.count(group) > 0) *to_run = std::move(given_.extract(group).mapped());
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return is_woken;
  }
  void Wake(size_t group) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    woken_.insert(group);
    ++wake_count_;
    changed_.notify_all();
  }
  void CheckTimes(int64_t) override {}
  void Give(size_t group, Calls calls) {
    const std::lock_guard<std::mutex> lock(mutex_);
    given_[group] = std::move(calls);
    changed_.notify_all();
  }
  int wake_count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return wake_count_;
  }
  void HoldWakes(bool are_held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    holds_wakes_ = are_held;
    changed_.notify_all();
  }
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, Calls> given_;
  std::set<size_t> woken_;  // groups
  int wake_count_ = 0;
  bool holds_wakes_ = false;
  bool is_over_ = false;
};

// Three models that share three threads, each of a group: two of these run, and one waits.
class SharingModelsTest : public RequestThreadsTest {
 protected:
  SharingModelsTest() {
    for (const char* const model : {"first", "next", "other"}) {
      auto servable = std::make_unique<testing::RowServable>(
          servable::ServableId{model, 1},
          [this, model](const testing::RowRun&) { return Run(model); });
      const auto entry = std::make_shared<servable::ServableEntry>(std::move(servable));
      EXPECT_TRUE(servable::PublishHighest(map_, entry).ok());
    }
  }
  // Runs of each model that take long, until the models share the threads.
  void ShareThreads(GivenRequests* source, const RequestThreads& threads) {
    while (!threads.is_shared()) {
      for (const char* const model : {"first", "next", "other"}) {
        source->Give(0, {NewCall(model)});
        while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
      }
    }
    WatchRuns();
  }
  std::shared_ptr<RunnableCall> NewCall(const std::string& model) {
    return NewRequest(stream_ += 2, 1, model);
  }
  base::Status Run(const std::string& model) {
    if (!are_watched_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    } else if (watch_) {
      watch_(model);
    }
    return {};
  }

  // Has watch_ run instead of the runs that take long.
  void WatchRuns() { are_watched_ = true; }

  std::function<void(const std::string& model)> watch_;

 private:
  std::atomic<bool> are_watched_{false};
  int32_t stream_ = -1;
};

// Returns false if it does not become true in time.
bool AwaitFor(const std::atomic<bool>& is_true, int64_t ns) {
  const int64_t end_ns = base::MonotonicNs() + ns;
  while (!is_true && base::MonotonicNs() < end_ns) std::this_thread::yield();
  return is_true;
}

// The thread of the first run takes the next one at once, of another model, and never looks at the
// other group while it lasts. Wakes are held back until then, so that no idle thread takes it. If
// another thread runs it all the same, the round shows nothing. Nor does it if no thread is idle,
// or if the watchdog wakes one just then, so most rounds decide.
TEST_F(SharingModelsTest, ARunsThreadIsFreeForHeldBackRequestsOfOtherGroups) {
  constexpr int kRoundsMax = 200;
  constexpr int kShownCount = 9;
  GivenRequests source;
  RequestThreads threads(&source, map_.batches(), PlanGroups({{0}, {1}, {2}}, 3), 3);
  threads.Start();
  ShareThreads(&source, threads);
  int shown_count = 0;
  int woken_count = 0;
  for (int round = 0; round < kRoundsMax && shown_count < kShownCount; ++round) {
    std::atomic<bool> has_begun{false}, is_held_back{false}, has_second{false}, is_over{false};
    std::atomic<std::thread::id> first_thread;
    std::atomic<int> wakes_before{0};
    std::atomic<int> ended_count{0};
    watch_ = [&](const std::string& model) {
      if (model == "first" && !has_begun.exchange(true)) {
        first_thread = std::this_thread::get_id();
        AwaitFor(is_held_back, testing::kSecond);
        wakes_before = source.wake_count();
      } else if (model == "first") {
        has_second = true;
      } else if (model == "other") {
        is_held_back = true;  // its thread has queued what came with it
        AwaitFor(is_over, testing::kSecond);
      } else {
        if (first_thread.load() == std::this_thread::get_id() && is_held_back && !has_second) {
          ++shown_count;
          woken_count += source.wake_count() > wakes_before ? 1 : 0;
        }
        source.HoldWakes(false);
        is_over = true;
      }
      ++ended_count;
    };
    source.HoldWakes(true);
    source.Give(0, {NewCall("first"), NewCall("next")});
    if (!AwaitFor(has_begun, testing::kSecond / 5)) source.HoldWakes(false);
    source.Give(1, {NewCall("other"), NewCall("first")});
    while (ended_count < 4) std::this_thread::yield();
    while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  }
  EXPECT_EQ(shown_count, kShownCount);
  EXPECT_GT(woken_count, kShownCount / 2) << "for the request that waited for the first run's end";
  threads.Stop();
  source.End();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
}

// The first model sends many requests, and then the other one sends a request.
class OverloadTest : public SharingModelsTest {
 protected:
  // Has each run of the first model do `run`.
  void WatchOverload(std::function<void()> run) {
    watch_ = [this, run = std::move(run)](const std::string& model) {
      if (model == "other") {
        begun_before_other_ = begun_count_.load();
        has_other_ = true;
        return;
      }
      ++begun_count_;
      run();
    };
  }
  void Send(int first_count) {
    WatchRuns();
    for (int i = 0; i < first_count; ++i) source_.Add(NewCall("first"));
    source_.Add(NewCall("other"));
  }
  void ExpectOtherPassesHalfOf(int first_count) const {
    EXPECT_TRUE(AwaitFor(has_other_, 30 * testing::kSecond));
    EXPECT_LT(begun_before_other_, first_count / 2);
  }
  void AwaitAnswers() const {
    while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  }
  void End(RequestThreads* threads) {
    AwaitAnswers();
    threads->Stop();
    source_.Wake(0);
    EXPECT_TRUE(threads->Join(4 * testing::kSecond));
  }

  AddedRequests source_;

 private:
  std::atomic<bool> has_other_{false};
  std::atomic<int> begun_count_{0}, begun_before_other_{0};
};

// No queue knows a model whose first runs go on, and all of them pass the queue: a thread that
// waits reads one connection. Without a share, the other model would wait behind all that it sends.
TEST_F(OverloadTest, AModelWhoseFirstRunsGoOnGetsItsShare) {
  constexpr int kFirstCount = 60;
  std::atomic<bool> is_over{false};
  WatchOverload([&] { AwaitFor(is_over, 30 * testing::kSecond); });
  RequestThreads threads(&source_, map_.batches(), {{4}}, 100);
  threads.Start();
  // The queue knows the other model.
  for (int i = 0; i < 20; ++i) {
    source_.Add(NewCall("other"));
    AwaitAnswers();
  }
  Send(kFirstCount);
  ExpectOtherPassesHalfOf(kFirstCount);
  is_over = true;
  End(&threads);
}

// Each run is so short that models do not share the threads. A thread that only took what the
// kernel reports next would run all of them first.
TEST_F(OverloadTest, ShortRunsOfManyConnectionsLetOthersPass) {
  constexpr int kFirstCount = 200;
  WatchOverload([] {
    const int64_t end_ns = base::MonotonicNs() + RequestThreads::kLookNs / 5;
    while (base::MonotonicNs() < end_ns) {
    }
  });
  RequestThreads threads(&source_, map_.batches(), {{1}}, 1);
  Send(kFirstCount);
  threads.Start();
  ExpectOtherPassesHalfOf(kFirstCount);
  End(&threads);
}

// A network to which nothing comes. It notes the cores of the threads that wait.
class SilentNetwork final : public EventSource {
 public:
  bool HandleEvents(size_t group, int timeout_ms, ReceiveSpace*,
                    std::vector<std::shared_ptr<RunnableCall>>*,
                    std::atomic<int>* idle_count) override {
    std::unique_lock<std::mutex> lock(mutex_);
    cores_[group] = base::AllowedCores();
    changed_.notify_all();
    if (timeout_ms != 0) changed_.wait(lock, [&] { return wake_count_ > 0; });
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return true;
  }
  void Wake(size_t) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_count_ += 1;
    changed_.notify_all();
  }
  void CheckTimes(int64_t) override {}
  std::map<size_t, std::vector<int>> WaitForCores(size_t group_count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return cores_.size() == group_count; });
    return cores_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, std::vector<int>> cores_;
  int wake_count_ = 0;
};

TEST_F(RequestThreadsTest, BoundThreadsStayOnTheirNode) {
  const std::vector<int> all = base::AllowedCores();
  const std::vector<int> first = {all.front()};
  const std::vector<int> last = {all.back()};
  SilentNetwork network;
  RequestThreads threads(&network, map_.batches(), PlanGroups({first, last}, 2), 2,
                         /*is_bound=*/true);
  threads.Start();
  const auto cores = network.WaitForCores(2);
  threads.Stop();
  EXPECT_TRUE(threads.Join(4 * testing::kSecond));
  EXPECT_EQ(cores.at(0), first);
  EXPECT_EQ(cores.at(1), last);
}

}  // namespace
}  // namespace millpond::rpc
