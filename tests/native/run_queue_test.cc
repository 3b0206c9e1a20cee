// The queue of requests in front of the threads: bursts, overload, and models that may not run.

#include "native/rpc/run_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "native/rpc/incoming_request.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/stream_call.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/raw_http2.h"
#include "tests/native/units.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::kMs;

// Takes the path's last part for the model's name, and for the signature's after a dot.
struct NamedHandler final : testing::WholeAnswers {
  std::set<std::string, std::less<>> unknown;  // names

  bool HasModel(std::string_view name) const override { return unknown.count(name) == 0; }
  void Answer(RunnableCall*) override {}
  static std::string LastPart(const Call& call) {
    return call.path().substr(call.path().rfind('/') + 1);
  }
  std::string ModelNameOf(const Call& call) const override {
    return LastPart(call).substr(0, LastPart(call).find('.'));
  }
  servable::BatchKey BatchKeyOf(const Call& call) const override {
    return servable::BatchKeyOf(LastPart(call), "");
  }
};

CallLimits LimitsWith(const servable::BatchRegistry* batches) {
  CallLimits limits;
  limits.batches = batches;
  return limits;
}

// Calls without a connection, with a clock of the test's own.
class RunQueueTest : public ::testing::Test {
 protected:
  std::shared_ptr<RunnableCall> NewCall(const std::string& model, const std::string& timeout,
                                        const std::string& message = "") {
    const std::string path = "/test/" + model;
    methods_[path] = {path, &handler_};
    IncomingRequest request{base::ByteBudget::Share()};
    if (!timeout.empty()) request.headers()->Add("grpc-timeout", timeout);
    EXPECT_TRUE(request.Begin(&methods_[path], {}, now_ns_).ok());
    EXPECT_TRUE(request.AddData(message, &space_, now_ns_).ok());
    return std::make_shared<StreamCall>(carrier_, &limits_, ++stream_, request.Take(),
                                        CallAccount());
  }
  // Returns true if the queue takes the request.
  bool Add(const std::string& timeout, const std::string& model = "m") {
    std::vector<std::shared_ptr<RunnableCall>> calls = {NewCall(model, timeout)};
    return queue_.Add(calls.begin(), calls.end(), now_ns_).too_late.empty();
  }
  std::string TakeModel() {
    RunCharge charge;
    const std::shared_ptr<RunnableCall> call = queue_.Take(now_ns_, &charge);
    return call == nullptr ? "" : call->PeekModelName();
  }
  // Lets time pass in a queue of one request that never empties.
  void Stand(int64_t ns, int64_t step_ns) {
    for (int64_t passed_ns = 0; passed_ns < ns; passed_ns += step_ns) {
      now_ns_ += step_ns;
      ASSERT_TRUE(Add(""));
      ASSERT_EQ(TakeModel(), "m");
    }
  }

  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  servable::BatchRegistry batches_;
  const CallLimits limits_ = LimitsWith(&batches_);
  NamedHandler handler_;
  std::map<std::string, Method> methods_;
  int64_t now_ns_ = 1'000 * kMs;
  int32_t stream_ = -1;
  ReceiveSpace space_;
  ThreadShares shares_;
  RunQueue queue_{batches_, 1, &shares_};
  RunCharge charge_;
  std::vector<std::shared_ptr<RunnableCall>> kept_;  // so that no two calls have one address
};

TEST_F(RunQueueTest, BurstIsTakenWhole) {
  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(Add("1S"));
  now_ns_ += RunQueue::kStandingNs - 1;
  EXPECT_TRUE(Add("1S"));
  EXPECT_EQ(queue_.size(), 1'001U);
  EXPECT_EQ(queue_.refused_count(), 0);
}

TEST_F(RunQueueTest, OverloadRefusesWhatWouldWaitTooLong) {
  ASSERT_TRUE(Add(""));
  Stand(RunQueue::kStandingNs, 10 * kMs);
  now_ns_ += 20 * kMs;
  // The oldest request has waited for 20 ms: 1/10 of 200 ms.
  EXPECT_FALSE(Add("199m"));
  EXPECT_TRUE(Add("201m"));
  EXPECT_TRUE(Add(""));
  EXPECT_EQ(queue_.refused_count(), 1);
  const std::shared_ptr<RunnableCall> expired = NewCall("m", "1m");
  now_ns_ += kMs;
  std::vector<std::shared_ptr<RunnableCall>> calls = {expired};
  EXPECT_TRUE(queue_.Add(calls.begin(), calls.end(), now_ns_).too_late.empty());
}

// Twice the load, of which each request has 1 s: the requests that are answered wait for a tenth of
// that at most, and a thread always has the next one. Over random arrivals.
TEST_F(RunQueueTest, AnswersOfAnOverloadAreEarlyAndNoThreadIsIdle) {
  constexpr int64_t kRunNs = 500'000;
  constexpr int64_t kLongestNs = 1'000 * kMs / RunQueue::kDelayShare;
  std::mt19937 random(1);
  std::exponential_distribution<double> interval(2.0 / kRunNs);
  std::map<const Call*, int64_t> begin_ns;
  const int64_t start_ns = now_ns_;
  double arrival_ns = static_cast<double>(start_ns);
  int64_t longest_ns = 0;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Add("1S"));
  for (int run = 0; run < 6'000; ++run) {
    const int64_t end_ns = now_ns_ + kRunNs;
    while (arrival_ns < static_cast<double>(end_ns)) {
      now_ns_ = static_cast<int64_t>(arrival_ns);
      std::vector<std::shared_ptr<RunnableCall>> calls = {NewCall("m", "1S")};
      begin_ns[calls[0].get()] = now_ns_;
      kept_.push_back(calls[0]);
      (void)queue_.Add(calls.begin(), calls.end(), now_ns_);
      arrival_ns += interval(random);
    }
    now_ns_ = end_ns;
    RunCharge charge;
    const std::shared_ptr<RunnableCall> call = queue_.Take(now_ns_, &charge);
    ASSERT_NE(call, nullptr);
    // The first requests come before the overload is known to last.
    const bool is_standing = begin_ns[call.get()] > start_ns + 3 * RunQueue::kStandingNs;
    if (is_standing) longest_ns = std::max(longest_ns, now_ns_ - begin_ns[call.get()]);
  }
  EXPECT_GT(queue_.refused_count(), 4'000);
  EXPECT_LT(longest_ns, kLongestNs + 10 * kMs);
  EXPECT_GT(longest_ns, kLongestNs - 10 * kMs);
}

TEST_F(RunQueueTest, ShortQueueRefusesNothing) {
  RunQueue queue(batches_, 2, &shares_);
  const auto add = [&] {
    std::vector<std::shared_ptr<RunnableCall>> calls = {NewCall("m", "1S")};
    return queue.Add(calls.begin(), calls.end(), now_ns_).too_late.empty();
  };
  ASSERT_TRUE(add());
  now_ns_ += 900 * kMs;
  EXPECT_TRUE(add());
  EXPECT_FALSE(add());
}

TEST_F(RunQueueTest, EmptyQueueEndsTheOverload) {
  ASSERT_TRUE(Add(""));
  Stand(RunQueue::kStandingNs, 10 * kMs);
  ASSERT_EQ(TakeModel(), "m");
  ASSERT_TRUE(Add("1S"));
  now_ns_ += 50 * kMs;
  EXPECT_TRUE(Add("1S"));
}

TEST_F(RunQueueTest, PausedModelLetsOthersPass) {
  ASSERT_TRUE(Add("", "slow"));
  ASSERT_TRUE(Add("", "quick"));
  queue_.SetPausedModels({"slow"}, now_ns_);
  EXPECT_EQ(TakeModel(), "quick");
  EXPECT_EQ(TakeModel(), "");
  EXPECT_EQ(queue_.size(), 0U);
  ASSERT_TRUE(Add("", "quick"));
  queue_.SetPausedModels({}, now_ns_);
  EXPECT_EQ(TakeModel(), "slow");
  EXPECT_EQ(TakeModel(), "quick");
}

TEST_F(RunQueueTest, OnlyAPausedModelOrAQueueStopsAnArrival) {
  const std::shared_ptr<RunnableCall> slow = NewCall("slow", "");
  const std::shared_ptr<RunnableCall> quick = NewCall("quick", "");
  EXPECT_TRUE(queue_.TryPass(slow.get(), now_ns_, &charge_));
  queue_.SetPausedModels({"slow"}, now_ns_);
  EXPECT_FALSE(queue_.TryPass(slow.get(), now_ns_, &charge_));
  EXPECT_TRUE(queue_.TryPass(quick.get(), now_ns_, &charge_));
  ASSERT_TRUE(Add("", "quick"));
  EXPECT_FALSE(queue_.TryPass(quick.get(), now_ns_, &charge_));
}

TEST_F(RunQueueTest, PausedRequestIsTakenAtItsDeadline) {
  ASSERT_TRUE(Add("100m", "slow"));
  ASSERT_TRUE(Add("", "slow"));
  queue_.SetPausedModels({"slow"}, now_ns_);
  EXPECT_EQ(TakeModel(), "");
  now_ns_ += 101 * kMs;
  queue_.SetPausedModels({"slow"}, now_ns_);
  EXPECT_EQ(TakeModel(), "slow");
  EXPECT_EQ(TakeModel(), "");
}

TEST_F(RunQueueTest, PausedRequestsRefuseNoOthers) {
  ASSERT_TRUE(Add("", "slow"));
  queue_.SetPausedModels({"slow"}, now_ns_);
  EXPECT_EQ(TakeModel(), "");
  now_ns_ += 10 * RunQueue::kStandingNs;
  EXPECT_TRUE(Add("1S", "quick"));
  queue_.SetPausedModels({}, now_ns_);
  now_ns_ += RunQueue::kStandingNs / 2;
  EXPECT_TRUE(Add("1S", "quick"));
  // The wait of the slow model's request counts from when it may run.
  EXPECT_TRUE(Add("1S", "slow"));
}

// A thread that looked for a request and held all back has left the queue empty.
TEST_F(RunQueueTest, TimeAfterAllAreHeldBackIsNoPace) {
  ASSERT_TRUE(Add("", "quick"));
  ASSERT_TRUE(Add("", "slow"));
  queue_.SetPausedModels({"slow"}, now_ns_);
  ASSERT_EQ(TakeModel(), "quick");
  ASSERT_EQ(TakeModel(), "");
  now_ns_ += 5'000 * kMs;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Add("", "quick"));
  ASSERT_EQ(TakeModel(), "quick");
  now_ns_ += RunQueue::kStandingNs;
  // The oldest has waited for 100 ms: less than 1/10 of 2 s.
  EXPECT_TRUE(Add("2S", "quick"));
}

// --- Requests for a thread that runs another one ---

class RunQueueForBatchesTest : public RunQueueTest {
 protected:
  RunQueueForBatchesTest() { batches_.Add({}); }

  // Adds a request of so many bytes, which has its key.
  void AddPeeked(const std::string& model, size_t message_bytes = 0) {
    const std::string message = testing::GrpcMessage(std::string(message_bytes, 'x'));
    std::vector<std::shared_ptr<RunnableCall>> calls = {NewCall(model, "", message)};
    ASSERT_TRUE(queue_.Add(calls.begin(), calls.end(), now_ns_).too_late.empty());
  }
  std::string TakeModelFor(const std::string& model, size_t bytes_max = 1'000) {
    return NameOf(
        queue_.TakeFor(ModelKeyOf(model), servable::BatchKeyOf(model, ""), bytes_max, &charge_));
  }
  std::string TakeAnyModelFor() {
    return NameOf(queue_.TakeFor(kNoModelKey, servable::kAnyBatchKey, 1'000, &charge_));
  }
  static std::string NameOf(const std::shared_ptr<RunnableCall>& call) {
    return call == nullptr ? "" : call->PeekModelName();
  }
};

TEST_F(RunQueueForBatchesTest, OldestRequestOfTheKeyIsTaken) {
  for (const char* model : {"a", "b", "b", "c"}) AddPeeked(model);
  EXPECT_EQ(TakeModelFor("b"), "b");
  EXPECT_EQ(TakeModelFor("b"), "b");
  EXPECT_EQ(TakeModelFor("b"), "");
  EXPECT_EQ(queue_.size(), 2U);
  EXPECT_EQ(TakeAnyModelFor(), "a");
  EXPECT_EQ(TakeModel(), "c");
}

TEST_F(RunQueueForBatchesTest, LongMessageStaysAndIsNotPassed) {
  AddPeeked("a", 100);
  AddPeeked("a", 10);
  EXPECT_EQ(TakeModelFor("a", 99), "");
  EXPECT_EQ(queue_.size(), 2U);
  EXPECT_EQ(TakeModelFor("a", 100), "a");
}

TEST_F(RunQueueForBatchesTest, OnlyTheOldestRequestsAreLookedAt) {
  for (size_t i = 0; i < servable::kLookedAtMax; ++i) AddPeeked("a.other");
  AddPeeked("a");
  EXPECT_EQ(TakeModelFor("a"), "");
  EXPECT_EQ(TakeModel(), "a");
  EXPECT_EQ(TakeModelFor("a"), "a");
}

TEST_F(RunQueueForBatchesTest, RequestsOfOthersHideNone) {
  for (size_t i = 0; i < servable::kLookedAtMax; ++i) AddPeeked("a");
  AddPeeked("b");
  EXPECT_EQ(TakeModelFor("b"), "b");
}

TEST_F(RunQueueForBatchesTest, APausedModelIsNotTakenAndOthersAre) {
  for (const char* model : {"a", "b", "b"}) AddPeeked(model);
  queue_.SetPausedModels({"a"}, now_ns_);
  EXPECT_EQ(TakeModelFor("a"), "");
  EXPECT_EQ(TakeAnyModelFor(), "b");
  queue_.SetPausedModels({}, now_ns_);
  EXPECT_EQ(TakeModelFor("a"), "a");
  EXPECT_EQ(TakeModelFor("b"), "b");
}

TEST_F(RunQueueForBatchesTest, WithoutABatchedModelNoKeyIsMade) {
  batches_.Remove({});
  AddPeeked("a");
  EXPECT_EQ(TakeModelFor("a"), "");
  EXPECT_EQ(TakeAnyModelFor(), "a");
}

// Ten requests leave in each step of 1 ms, nine of them for a batch: the pace is 0.1 ms.
TEST_F(RunQueueForBatchesTest, RequestsOfABatchCountForThePace) {
  for (int i = 0; i < 2'000; ++i) AddPeeked("a");
  for (int step = 0; step < 100; ++step) {
    now_ns_ += kMs;
    ASSERT_EQ(TakeModel(), "a");
    for (int i = 0; i < 9; ++i) ASSERT_EQ(TakeModelFor("a"), "a");
  }
  // A thousand requests wait: for 100 ms at that pace, and the oldest has waited as long.
  EXPECT_FALSE(Add("900m", "a"));
  EXPECT_TRUE(Add("1100m", "a"));
}

// The first request of this run came straight from the network: its part is charged at the end.
TEST_F(RunQueueForBatchesTest, ARunThatTookMoreFromTheQueueIsChargedWhole) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Add("", "a"));
  RunCharge charge;
  ASSERT_NE(queue_.TakeFor(ModelKeyOf("a"), servable::BatchKeyOf("a", ""), 1'000, &charge),
            nullptr);
  EXPECT_EQ(charge.request_count, 2);
  charge.took_ns = 40 * kMs;
  queue_.Settle(charge);
  // Two more requests of 20 ms fit in none of the time that the other model may have first.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Add("", "b"));
  EXPECT_EQ(TakeModel(), "b");
  EXPECT_EQ(TakeModel(), "b");
  EXPECT_EQ(TakeModel(), "a");
}

// Within the run of one model a request of another has a turn, and may have a batch.
TEST_F(RunQueueForBatchesTest, ABatchOfAnotherModelIsFoundByItsKey) {
  AddPeeked("a");
  AddPeeked("b");
  RunCharge charge{ModelKeyOf("a"), 0, 1, 0, 0};
  const auto take = [&](const std::string& name) {
    return NameOf(queue_.TakeFor(ModelKeyOf("a"), servable::BatchKeyOf(name, ""), 1'000, &charge));
  };
  EXPECT_EQ(take("b"), "b");
  EXPECT_EQ(charge.request_count, 1);
  EXPECT_EQ(take("b"), "");
  EXPECT_EQ(take("a"), "a");
  EXPECT_EQ(charge.request_count, 2);
}

// A guest's model is charged for it, and so its host is not.
TEST_F(RunQueueForBatchesTest, AGuestIsNotChargedToItsHost) {
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Add("", "host"));
  ASSERT_TRUE(Add("", "guest"));
  RunCharge charge;
  ASSERT_NE(queue_.Take(now_ns_, &charge), nullptr);
  const int64_t charged_ns = charge.charged_ns;
  EXPECT_EQ(
      NameOf(queue_.TakeFor(ModelKeyOf("host"), servable::BatchKeyOf("guest", ""), 1'000, &charge)),
      "guest");
  EXPECT_EQ(charge.charged_ns, charged_ns);
  ASSERT_EQ(charge.guests.size(), 1U);
  EXPECT_EQ(charge.guests[0].charged_ns, RunQueue::kUnknownCostNs);
  charge.took_ns = charged_ns + charge.guests[0].charged_ns;
  queue_.Settle(charge);
  // Both have had as much, so the host's next request, which came first, is next.
  ASSERT_TRUE(Add("", "guest"));
  EXPECT_EQ(TakeModel(), "host");
  EXPECT_EQ(TakeModel(), "guest");
}

// Guests that are charged more than they take, and more than the whole run: host and guest learn
// what they cost together.
TEST_F(RunQueueForBatchesTest, AHostLearnsItsCostBesideGuests) {
  constexpr int64_t kTookNs = RunQueue::kUnknownCostNs / 2;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(Add("", "host"));
    ASSERT_TRUE(Add("", "guest"));
    RunCharge charge;
    ASSERT_EQ(NameOf(queue_.Take(now_ns_, &charge)), "host");
    ASSERT_NE(queue_.TakeFor(ModelKeyOf("host"), servable::BatchKeyOf("guest", ""), 1'000, &charge),
              nullptr);
    charge.took_ns = kTookNs;
    queue_.Settle(charge);
  }
  for (const char* const model : {"host", "guest"}) {
    ASSERT_TRUE(Add("", model));
    RunCharge charge;
    ASSERT_NE(queue_.Take(now_ns_, &charge), nullptr);
    EXPECT_NEAR(static_cast<double>(charge.charged_ns), kTookNs / 2.0, kTookNs / 20.0) << model;
  }
}

// --- Fairness among models ---

TEST_F(RunQueueTest, ABurstOfOneModelLetsAnotherPass) {
  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(Add("", "busy"));
  ASSERT_EQ(TakeModel(), "busy");
  ASSERT_TRUE(Add("", "quiet"));
  EXPECT_EQ(TakeModel(), "quiet");
  EXPECT_EQ(TakeModel(), "busy");
}

TEST_F(RunQueueTest, AnOverloadedModelRefusesItsOwnRequestsOnly) {
  ASSERT_TRUE(Add(""));
  Stand(RunQueue::kStandingNs, 10 * kMs);
  now_ns_ += 20 * kMs;
  EXPECT_FALSE(Add("199m"));
  EXPECT_TRUE(Add("199m", "quiet"));
  EXPECT_EQ(TakeModel(), "quiet");
}

// Threads that serve random loads of models with random costs.
class FairnessTest : public RunQueueTest {
 protected:
  // A thread's run, until that time.
  struct Running {
    int64_t end_ns = 0;
    RunCharge charge;
  };

  // Lets the thread that is free first take a request. Returns its model.
  std::string Serve() {
    const auto thread = std::min_element(
        threads_.begin(), threads_.end(),
        [](const Running& one, const Running& other) { return one.end_ns < other.end_ns; });
    now_ns_ = std::max(now_ns_, thread->end_ns);
    const std::shared_ptr<RunnableCall> call = queue_.Take(now_ns_, &thread->charge);
    if (call == nullptr) return "";
    std::uniform_real_distribution<double> spread(0.5, 1.5);
    const std::string model = call->PeekModelName();
    const auto ns = static_cast<int64_t>(static_cast<double>(cost_ns_[model]) * spread(random_));
    thread->end_ns = now_ns_ + ns;
    thread->charge.took_ns = ns;
    served_ns_[model] += ns;
    return model;
  }

  std::mt19937 random_;
  std::map<std::string, int64_t> cost_ns_;
  std::map<std::string, int64_t> served_ns_;
  std::vector<Running> threads_;
};

// Models that always have requests get the same time of the threads, whatever a request costs.
TEST_F(FairnessTest, BusyModelsGetEqualTime) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    random_.seed(seed);
    served_ns_.clear();
    threads_.assign(1 + seed, {now_ns_, {}});
    cost_ns_ = {{"a", kMs}, {"b", 1 + random_() % (30 * kMs)}, {"c", 1 + random_() % (3 * kMs)}};
    for (const auto& [model, cost] : cost_ns_) {
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(Add("", model));
    }
    const auto longest = std::max_element(
        cost_ns_.begin(), cost_ns_.end(),
        [](const auto& one, const auto& other) { return one.second < other.second; });
    const int64_t end_ns = now_ns_ + 100 * longest->second;
    while (now_ns_ < end_ns) {
      const std::string model = Serve();
      ASSERT_TRUE(Add("", model));
    }
    int64_t all_ns = 0;
    for (const auto& [model, ns] : served_ns_) all_ns += ns;
    for (const auto& [model, ns] : served_ns_) {
      const double share = static_cast<double>(ns) / static_cast<double>(all_ns);
      EXPECT_NEAR(share, 1.0 / 3, 0.05) << model << " of seed " << seed;
    }
    while (!TakeModel().empty()) {
    }
  }
}

// While a model has requests, a busy model gets no more of the threads' time than it, but for one
// request of each, and what the runs under way take less than expected.
TEST_F(FairnessTest, AModelBelowItsShareWaitsForNoQueue) {
  constexpr int64_t kBusyNs = 5 * kMs;
  constexpr int64_t kQuietNs = kMs / 2;
  cost_ns_ = {{"busy", kBusyNs}, {"quiet", kQuietNs}};
  for (unsigned seed = 0; seed < 8; ++seed) {
    random_.seed(seed);
    threads_.assign(1 + seed, {now_ns_, {}});
    const auto thread_count = static_cast<int64_t>(threads_.size());
    const int64_t slack_ns = 2 * (kBusyNs + kQuietNs) + thread_count * kBusyNs / 2;
    for (int i = 0; i < 1'200; ++i) ASSERT_TRUE(Add("", "busy"));
    // Costs are not known at first.
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(Add("", "quiet"));
    for (int i = 0; i < 100; ++i) (void)Serve();
    // A fifth of the threads' time.
    std::exponential_distribution<double> interval(0.2 * static_cast<double>(thread_count) /
                                                   static_cast<double>(kQuietNs));
    double arrival_ns = static_cast<double>(now_ns_);
    int64_t waiting_count = 0;
    int64_t waited_count = 0;
    for (int i = 0; i < 1'000; ++i) {
      for (; arrival_ns < static_cast<double>(now_ns_); arrival_ns += interval(random_)) {
        ASSERT_TRUE(Add("", "quiet"));
        if (++waiting_count == 1) served_ns_.clear();
        ++waited_count;
      }
      if (Serve() == "quiet") --waiting_count;
      if (waiting_count > 0) ASSERT_LE(served_ns_["busy"], served_ns_["quiet"] + slack_ns) << seed;
    }
    EXPECT_GT(waited_count, 100);
    while (!TakeModel().empty()) {
    }
  }
}

// Threads that models share. ThreadSharesTest has the promise.
class SharedThreadsTest : public RunQueueTest {
 protected:
  // Lets `model` have had a run of that time.
  void Teach(const std::string& model, int64_t ns) {
    ASSERT_TRUE(Add("", model));
    RunCharge charge;
    ASSERT_NE(queue_.Take(now_ns_, &charge), nullptr);
    charge.took_ns = ns;
    queue_.Settle(charge);
  }
  void Limit(int64_t regular_count, int64_t spare_count) {
    ActiveModels models;
    queue_.AddActiveModels(now_ns_, &models);
    const ServingThreads threads{regular_count, spare_count, regular_count + spare_count};
    shares_.Limit(ThreadShares::Decide(threads, models));
    queue_.Recount();
  }
  // Lets `count` idle threads take requests of the model. Returns the number of those taken.
  int Dispatch(int count) {
    int taken_count = 0;
    for (; taken_count < count && queue_.ready_count() > 0; ++taken_count) {
      EXPECT_NE(queue_.Take(now_ns_, &charge_), nullptr);
    }
    return taken_count;
  }
  void End(RunCharge* charge) {
    if (charge->threads != nullptr) (void)shares_.Release(charge->threads);
    queue_.Settle(*charge);
    queue_.Recount();
  }
};

TEST_F(SharedThreadsTest, OneModelMayTakeAllThreads) {
  Teach("m", 20 * kMs);
  Limit(1, 1);
  EXPECT_FALSE(shares_.is_shared()) << "there is no other model";
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Add("", "m"));
  EXPECT_EQ(Dispatch(5), 5);
}

TEST_F(SharedThreadsTest, ShortRunsAreNotHeldBack) {
  Teach("m", kMs / 10);
  Teach("n", kMs / 10);
  Limit(1, 1);
  EXPECT_FALSE(shares_.is_shared());
}

// Requests that come one at a time pass the queue, which must know of their models all the same.
TEST_F(SharedThreadsTest, ModelsThatOnlyPassShareTheThreads) {
  RunCharge charge;
  for (const char* const model : {"slow", "quick"}) {
    const std::shared_ptr<RunnableCall> call = NewCall(model, "");
    ASSERT_TRUE(queue_.TryPass(call.get(), now_ns_, &charge));
    ASSERT_EQ(charge.model, kNoModelKey);
    call->PeekQueueKeys();
    queue_.NotePassed(call->model_key(), model[0] == 's' ? 3 * kMs : kMs / 10, now_ns_);
  }
  Limit(1, 2);
  EXPECT_TRUE(shares_.is_shared());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Add("", "slow"));
  EXPECT_EQ(Dispatch(3), 1);
  EXPECT_TRUE(queue_.TryPass(NewCall("quick", "").get(), now_ns_, &charge));
}

TEST_F(SharedThreadsTest, ARequestThatPassesHoldsItsThread) {
  Teach("m", 20 * kMs);
  Teach("n", 20 * kMs);
  Limit(1, 1);
  const std::shared_ptr<RunnableCall> first = NewCall("m", "");
  const std::shared_ptr<RunnableCall> second = NewCall("m", "");
  RunCharge charge;
  ASSERT_TRUE(queue_.TryPass(first.get(), now_ns_, &charge));
  EXPECT_FALSE(queue_.TryPass(second.get(), now_ns_, &charge_)) << "it has its share";
  EXPECT_TRUE(queue_.TryPass(NewCall("n", "").get(), now_ns_, &charge_));
  charge.took_ns = kMs;
  End(&charge);
  EXPECT_TRUE(queue_.TryPass(second.get(), now_ns_, &charge));
}

// The watchdog settles the charge of a run that takes requests of its batch meanwhile. For
// ThreadSanitizer, and under the others for the count of the threads.
TEST_F(SharedThreadsTest, ARunThatIsSettledEarlyMayTakeRequestsMeanwhile) {
  batches_.Add({});  // else no request has a key
  Teach("m", 20 * kMs);
  Teach("n", 20 * kMs);
  Limit(1, 1);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(Add("", "m"));
    ASSERT_TRUE(Add("", "m"));
    RunCharge charge;
    ASSERT_NE(queue_.Take(now_ns_, &charge), nullptr);
    ASSERT_EQ(shares_.held_count(), 1);
    std::thread run([&] {
      const servable::BatchKey key = servable::BatchKeyOf("m", "");
      EXPECT_NE(queue_.TakeFor(ModelKeyOf("m"), key, SIZE_MAX, &charge), nullptr);
    });
    EXPECT_TRUE(queue_.SettleEarly(&charge, kMs));
    run.join();
    EXPECT_EQ(charge.threads, nullptr);
    EXPECT_EQ(shares_.held_count(), 0);
  }
}

// A lowered run settles its charge before it ends, because its thread takes no lock any more.
TEST_F(SharedThreadsTest, ARunThatGivesWayIsChargedAndLeavesItsPlace) {
  Teach("greedy", 20 * kMs);
  Teach("other", kMs);
  Limit(1, 1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Add("", "greedy"));
  ASSERT_NE(queue_.Take(now_ns_, &charge_), nullptr);
  EXPECT_EQ(queue_.ready_count(), 0U);
  EXPECT_TRUE(queue_.SettleEarly(&charge_, 300 * kMs));
  EXPECT_EQ(shares_.held_count(), 0);
  EXPECT_EQ(queue_.ready_count(), 1U);
  EXPECT_EQ(charge_.model, kNoModelKey);
  // For 300 ms of it, the other model has its turns.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Add("", "other"));
  for (int i = 0; i < 50; ++i) {
    const std::shared_ptr<RunnableCall> call = queue_.Take(now_ns_, &charge_);
    ASSERT_EQ(call->PeekModelName(), "other");
    charge_.took_ns = kMs;
    End(&charge_);
    charge_ = {};
  }
  EXPECT_EQ(TakeModel(), "greedy");
}

// A run that ends after the queue was empty leaves neither a debt nor a credit.
TEST_F(RunQueueTest, AnOldRunIsNoDebt) {
  ASSERT_TRUE(Add("", "slow"));
  RunCharge charge;
  ASSERT_NE(queue_.Take(now_ns_, &charge), nullptr);
  charge.took_ns = 5'000 * kMs;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Add("", "slow"));
    ASSERT_TRUE(Add("", "quick"));
  }
  queue_.Settle(charge);
  EXPECT_EQ(TakeModel(), "slow");
}

// Models without number are forgotten once they have no request.
TEST_F(RunQueueTest, NamesOfNoModelLeaveNothing) {
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(Add("", "no-model-" + std::to_string(i)));
    ASSERT_NE(TakeModel(), "");
  }
  EXPECT_LT(queue_.known_count(), 2'000U);
}

// A request may wait while the first version of its model comes.
TEST_F(RunQueueTest, ARequestWhoseModelHasComeIsItsModels) {
  handler_.unknown = {"late", "no-model"};
  for (const char* const name : {"late", "late", "no-model", "late"}) ASSERT_TRUE(Add("", name));
  handler_.unknown = {"no-model"};
  RunCharge charge;
  std::map<std::string, ModelKey> keys;
  for (int i = 0; i < 4; ++i) {
    const std::shared_ptr<RunnableCall> call = queue_.Take(now_ns_, &charge);
    ASSERT_NE(call, nullptr);
    const auto found = keys.try_emplace(call->PeekModelName(), charge.model);
    EXPECT_EQ(found.first->second, charge.model);
  }
  EXPECT_EQ(keys["late"], ModelKeyOf("late"));
  EXPECT_EQ(keys["no-model"], kNoSuchModelKey);
  EXPECT_EQ(queue_.size(), 0U);
}

// Over random orders: each request that was added comes out once, those of one model in order.
TEST_F(RunQueueTest, EachRequestComesOutOnceAndInOrder) {
  const std::vector<std::string> models = {"a", "b", "c"};
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    RunQueue queue(batches_, 1, &shares_);
    std::map<std::string, std::vector<const Call*>> added;
    std::map<std::string, std::vector<const Call*>> taken;
    const auto take = [&](bool is_for_batch = false) {
      const std::shared_ptr<RunnableCall> call =
          is_for_batch ? queue.TakeFor(kNoModelKey, servable::kAnyBatchKey, 1'000, &charge_)
                       : queue.Take(now_ns_, &charge_);
      if (call != nullptr) taken[call->PeekModelName()].push_back(call.get());
      if (call != nullptr) kept_.push_back(call);
      return call != nullptr;
    };
    for (int step = 0; step < 200; ++step) {
      now_ns_ += kMs;
      const std::string model = models[random() % models.size()];
      const unsigned choice = random() % 8;
      if (choice < 4) {
        std::vector<std::shared_ptr<RunnableCall>> calls = {NewCall(model, "")};
        added[model].push_back(calls[0].get());
        EXPECT_TRUE(queue.Add(calls.begin(), calls.end(), now_ns_).too_late.empty());
      } else if (choice < 7) {
        take(/*is_for_batch=*/choice == 6);
      } else {
        queue.SetPausedModels(
            random() % 2 == 0 ? std::set<std::string>{} : std::set<std::string>{model}, now_ns_);
      }
    }
    queue.SetPausedModels({}, now_ns_);
    while (take()) {
    }
    ASSERT_EQ(taken, added) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millpond::rpc
