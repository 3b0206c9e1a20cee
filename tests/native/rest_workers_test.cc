#include "native/rest/rest_workers.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/admission.h"
#include "native/servable/answer_requests.h"
#include "native/servable/batch_queue.h"
#include "native/servable/serving_map.h"
#include "tests/native/predict_messages.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/threads.h"

namespace millpond::rest {
namespace {

using base::Code;
using metrics::Method;
using testing::Gate;
using testing::Scripted;

// Prepares an empty answer. A run of no signature computes nothing.
void AnswerNothing(const servable::Servable& servable, PreparedRest* prepared) {
  prepared->run.servable = &servable;
  prepared->encode = [](servable::PreparedRun*, RestReply*) { return base::Status(); };
}

// Two models: "m" answers at once with the body's values; "held" waits for the gate.
class RestWorkersTest : public ::testing::Test {
 protected:
  RestWorkersTest() : quick_("m", 7), held_("held", 1) {
    EXPECT_TRUE(servable::PublishHighest(map_, quick_.entry).ok());
    EXPECT_TRUE(servable::PublishHighest(map_, held_.entry).ok());
    options_.statistics = statistics_;
    options_.prepare = [this](const RestRequest&, std::string_view body,
                              const servable::Servable& servable,
                              PreparedRest* prepared) -> base::Status {
      if (servable.id().name == "held") MILLPOND_RETURN_IF_ERROR(gate_.Pass(prepared->run.context));
      if (body == "fail") return base::InvalidArgument("no such input");
      AnswerNothing(servable, prepared);
      prepared->encode = [body](servable::PreparedRun*, RestReply* reply) {
        reply->body = std::move(base::CopyReply(body, {}).value());
        return base::Status();
      };
      return {};
    };
  }
  ~RestWorkersTest() override {
    gate_.Open();
    workers_.reset();
  }

  void Start() {
    workers_ = std::make_unique<RestWorkers>(&map_, options_);
    ASSERT_TRUE(workers_->Start().ok());
  }

  static RestRequest Request(std::string model, std::string_view body = "body") {
    RestRequest request;
    request.model.name = std::move(model);
    request.body = body;
    request.received_ns = base::MonotonicNs();
    return request;
  }

  static RequestHeaders Header(std::string name, std::string value) {
    std::vector<std::pair<std::string, std::string>> fields;
    fields.emplace_back(std::move(name), std::move(value));
    return RequestHeaders(std::move(fields));
  }

  // Waits until `count` requests have ended, like an event loop.
  std::vector<EndedRequest> TakeEnded(size_t count) {
    std::vector<EndedRequest> all;
    while (all.size() < count) {
      pollfd waited{workers_->ended_descriptor(), POLLIN, 0};
      EXPECT_EQ(poll(&waited, 1, kPatienceMs), 1);
      for (EndedRequest& ended : workers_->TakeEnded()) all.push_back(std::move(ended));
    }
    return all;
  }

  EndedRequest Answer(RestRequest request) {
    const auto id = workers_->Submit(std::move(request));
    EXPECT_TRUE(id.ok());
    std::vector<EndedRequest> ended = TakeEnded(1);
    EXPECT_EQ(ended[0].id, id.value());
    return std::move(ended[0]);
  }

  static int64_t CountOf(const metrics::RequestRecorder& requests, Method method, Code code) {
    return requests.Of(method).Summary().count_by_code[static_cast<size_t>(code)];
  }

  // Above what any machine takes to get there.
  static constexpr int kPatienceMs = 60'000;
  static constexpr int64_t kForeverNs = 60'000'000'000;

  Gate gate_;
  Scripted quick_;
  Scripted held_;
  servable::ServingMap map_;
  const std::shared_ptr<metrics::RequestStatistics> statistics_ =
      std::make_shared<metrics::RequestStatistics>(/*now_ns=*/0);
  RestWorkersOptions options_;
  std::unique_ptr<RestWorkers> workers_;
};

TEST_F(RestWorkersTest, ARequestIsAnsweredByAVersionThatRecordsIt) {
  Start();
  const EndedRequest ended = Answer(Request("m", "hello"));
  EXPECT_TRUE(ended.status.ok());
  EXPECT_EQ(ended.reply.body.view(), "hello");
  ASSERT_TRUE(ended.reached);
  EXPECT_EQ(ended.reached->version, 7);
  EXPECT_EQ(CountOf(quick_.entry->requests(), Method::kRestPredict, Code::kOk), 1);
  EXPECT_EQ(quick_.entry->handle_count(), 0);
}

TEST_F(RestWorkersTest, RequestsForAFirstVersionWaitWithoutAThread) {
  options_.thread_count = 2;
  options_.first_version_wait_ns = kForeverNs;
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  // Threads are free for other requests meanwhile.
  EXPECT_TRUE(Answer(Request("m")).status.ok());
  Scripted late("late", 1);
  ASSERT_TRUE(servable::PublishHighest(map_, late.entry).ok());
  for (const EndedRequest& ended : TakeEnded(10)) EXPECT_TRUE(ended.status.ok());
  EXPECT_EQ(CountOf(late.entry->requests(), Method::kRestPredict, Code::kOk), 10);
}

// The version may come at any step of a request's first look-ups.
TEST_F(RestWorkersTest, NoRequestMissesTheFirstVersionThatComesMeanwhile) {
  constexpr int kModelCount = 300;
  options_.first_version_wait_ns = kForeverNs;
  Start();
  for (int i = 0; i < kModelCount; ++i) {
    const std::string name = "late-" + std::to_string(i);
    map_.SetNotes(name, {"version 1 is loading", true, {}});
    Scripted late(name, 1);
    ASSERT_TRUE(workers_->Submit(Request(name)).ok());
    base::SleepNs(i % 50 * 1'000);
    ASSERT_TRUE(servable::PublishHighest(map_, late.entry).ok());
    ASSERT_TRUE(TakeEnded(1)[0].status.ok()) << name;
    ASSERT_TRUE(servable::RetireVersion(map_, name, 1).ok());
  }
}

// While the worker that put it aside is busy, another worker watches it.
TEST_F(RestWorkersTest, AFirstVersionIsSeenByTheWorkerThatIsFree) {
  options_.thread_count = 4;
  options_.first_version_wait_ns = kForeverNs;
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  EXPECT_TRUE(Answer(Request("m")).status.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(3);
  Scripted late("late", 1);
  ASSERT_TRUE(servable::PublishHighest(map_, late.entry).ok());
  EXPECT_EQ(TakeEnded(1)[0].reached->name, "late");
}

// A batch on the test's thread takes requests that wait for the only worker.
class WaitingForTheWorker : public RestWorkersTest {
 protected:
  WaitingForTheWorker() {
    map_.batches().Add({});  // so that requests get keys
    options_.thread_count = 1;
    Start();
    EXPECT_TRUE(workers_->Submit(Request("held")).ok());
    gate_.WaitForArrivals(1);
    waiting_ = workers_->waiting_requests();
  }

  std::shared_ptr<servable::WaitingRequests> waiting_;
};

// Answers the oldest request of `key` on the test's thread. Returns false if none waits.
bool AnswerOldest(servable::WaitingRequests* waiting, servable::BatchKey key, size_t bytes_max) {
  const auto request = waiting->Take(key, bytes_max);
  if (request != nullptr) servable::AnswerRequests(request.get(), waiting);
  return request != nullptr;
}

TEST_F(WaitingForTheWorker, ABatchTakesTheOldestRequestOfItsKey) {
  const servable::BatchKey key = servable::BatchKeyOf("m", "");
  EXPECT_FALSE(waiting_->HasFreeThread());
  EXPECT_FALSE(AnswerOldest(waiting_.get(), key, 1'000));
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  const auto first = workers_->Submit(Request("m", "first"));
  const auto second = workers_->Submit(Request("m", "second"));
  ASSERT_TRUE(AnswerOldest(waiting_.get(), key, 1'000));
  const std::vector<EndedRequest> ended = TakeEnded(1);
  EXPECT_EQ(ended[0].id, first.value());
  EXPECT_EQ(ended[0].reply.body.view(), "first");
  EXPECT_TRUE(AnswerOldest(waiting_.get(), key, 1'000));
  EXPECT_EQ(TakeEnded(1)[0].id, second.value());
}

TEST_F(WaitingForTheWorker, ABatchTakesNoRequestOfAnotherKeyOrLength) {
  const std::string body = "{\"signature_name\": \"other\", \"instances\": [1, 2, 3]}";
  ASSERT_TRUE(workers_->Submit(Request("m", body)).ok());
  EXPECT_FALSE(AnswerOldest(waiting_.get(), servable::BatchKeyOf("m", ""), 1'000));
  EXPECT_FALSE(AnswerOldest(waiting_.get(), servable::BatchKeyOf("m", "other"), 2));
  EXPECT_TRUE(AnswerOldest(waiting_.get(), servable::BatchKeyOf("m", "other"), 1'000));
  EXPECT_EQ(TakeEnded(1)[0].reply.body.view(), body);
}

TEST_F(WaitingForTheWorker, MoreOfASignatureThanMayWaitAreRefused) {
  map_.batches().Add({{servable::BatchKeyOf("m", "")}, 2});
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  ASSERT_TRUE(workers_->Submit(Request("m")).ok());
  ASSERT_TRUE(workers_->Submit(Request("m")).ok());
  const auto refused = workers_->Submit(Request("m"));
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("max_enqueued_batches"), std::string::npos);
  EXPECT_TRUE(workers_->Submit(Request("held")).ok());
  EXPECT_EQ(CountOf(statistics_->Unmatched("m"), Method::kRestPredict, Code::kUnavailable), 1);
}

// Threads of both kinds take requests, and the event loop takes their ends, all at once.
TEST_F(RestWorkersTest, EachRequestEndsOnceHoweverManyThreadsTakeThem) {
  constexpr int kRequestCount = 2'000;
  map_.batches().Add({});
  options_.thread_count = 2;
  options_.waiting_count_max = kRequestCount;
  Start();
  const auto waiting = workers_->waiting_requests();
  std::atomic<bool> is_over{false};
  std::vector<std::thread> takers;
  for (int i = 0; i < 2; ++i) {
    takers.emplace_back([&] {
      while (!is_over) {
        if (!AnswerOldest(waiting.get(), servable::BatchKeyOf("m", ""), 1'000))
          std::this_thread::yield();
      }
    });
  }
  std::set<uint64_t> ids;
  for (int i = 0; i < kRequestCount; ++i) ids.insert(workers_->Submit(Request("m")).value());
  for (const EndedRequest& ended : TakeEnded(kRequestCount)) {
    EXPECT_TRUE(ended.status.ok());
    EXPECT_EQ(ids.erase(ended.id), 1U);
  }
  is_over = true;
  for (std::thread& taker : takers) taker.join();
  EXPECT_TRUE(ids.empty());
  EXPECT_TRUE(workers_->Shutdown(0));
  EXPECT_TRUE(workers_->TakeEnded().empty());
}

TEST_F(RestWorkersTest, BusyServerAnswersRequestsThatWaitedForAVersion) {
  constexpr int kRequestCountMax = 10'000;
  std::atomic<int> quick_count{0};
  std::atomic<bool> is_over{false};
  options_.thread_count = 1;
  options_.first_version_wait_ns = kForeverNs;
  Scripted late("late", 1);
  // Each request brings the next one: the only worker always has one waiting.
  options_.prepare = [&](const RestRequest&, std::string_view, const servable::Servable& servable,
                         PreparedRest* prepared) -> base::Status {
    AnswerNothing(servable, prepared);
    if (servable.id().name == "late") is_over = true;
    if (is_over || ++quick_count >= kRequestCountMax) return {};
    if (quick_count == 1) {
      EXPECT_TRUE(servable::PublishHighest(map_, late.entry).ok());
    }
    return workers_->Submit(Request("m")).status();
  };
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  ASSERT_TRUE(workers_->Submit(Request("m")).ok());
  while (!is_over && quick_count < kRequestCountMax) std::this_thread::yield();
  EXPECT_LT(quick_count, kRequestCountMax);
  EXPECT_TRUE(workers_->Shutdown(kForeverNs));
}

TEST_F(RestWorkersTest, TheEndOfAWaitForAFirstVersionHasTheReason) {
  options_.first_version_wait_ns = 1'000'000;
  map_.SetNotes("late", {"version 1 is loading, stage restore", true, {}});
  Start();
  const EndedRequest ended = Answer(Request("late"));
  EXPECT_EQ(ended.status.code(), Code::kUnavailable);
  EXPECT_EQ(ended.status.message(), "model 'late': version 1 is loading, stage restore");
}

TEST_F(RestWorkersTest, AStopAndACancellationEndAWaitForAFirstVersion) {
  options_.first_version_wait_ns = kForeverNs;
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  const auto cancelled = workers_->Submit(Request("late"));
  workers_->Cancel(cancelled.value());
  EXPECT_EQ(TakeEnded(1)[0].id, cancelled.value());
  ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  EXPECT_TRUE(workers_->Shutdown(kForeverNs));
  EXPECT_EQ(TakeEnded(1)[0].status.code(), Code::kUnavailable);
}

TEST_F(RestWorkersTest, ADrainEndsWaitsForAFirstVersionAndServesOthers) {
  options_.first_version_wait_ns = kForeverNs;
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  workers_->EndAwaiting();
  EXPECT_EQ(TakeEnded(1)[0].status.code(), Code::kUnavailable);
  EXPECT_EQ(Answer(Request("late")).status.code(), Code::kUnavailable);
  EXPECT_TRUE(Answer(Request("m")).status.ok());
}

TEST_F(RestWorkersTest, AModelThatIsForgottenEndsTheWaitForItsVersion) {
  options_.first_version_wait_ns = kForeverNs;
  map_.SetNotes("late", {"version 1 is loading", true, {}});
  Start();
  ASSERT_TRUE(workers_->Submit(Request("late")).ok());
  map_.SetNotes("late", {});
  EXPECT_EQ(TakeEnded(1)[0].status.code(), Code::kNotFound);
}

TEST_F(RestWorkersTest, AMessageAsLongAsTheBodyIsCut) {
  options_.prepare = [](const RestRequest&, std::string_view body, const servable::Servable&,
                        PreparedRest*) { return base::InvalidArgument(std::string(body)); };
  Start();
  const std::string body(100'000, 'x');
  EXPECT_LT(Answer(Request("m", body)).status.message().size(), 2'000U);
}

TEST_F(RestWorkersTest, AFailureNamesTheVersionAndIsRecordedThere) {
  Start();
  RestRequest request = Request("m", "fail");
  request.method = Method::kRestClassify;
  const EndedRequest ended = Answer(std::move(request));
  EXPECT_EQ(ended.status.code(), Code::kInvalidArgument);
  ASSERT_TRUE(ended.reached);
  EXPECT_EQ(CountOf(quick_.entry->requests(), Method::kRestClassify, Code::kInvalidArgument), 1);
}

TEST_F(RestWorkersTest, ARequestThatFindsNoVersionIsRecordedAsUnmatched) {
  Start();
  const EndedRequest ended = Answer(Request("nobody"));
  EXPECT_EQ(ended.status.code(), Code::kNotFound);
  EXPECT_FALSE(ended.reached);
  EXPECT_EQ(CountOf(*statistics_->unmatched(), Method::kRestPredict, Code::kNotFound), 1);
}

TEST_F(RestWorkersTest, SlowRequestsDelayNoOthers) {
  Start();
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(1);
  EXPECT_TRUE(Answer(Request("m")).status.ok());
}

TEST_F(RestWorkersTest, EndlessRequestsOfOneModelLeaveWorkersToOthers) {
  for (const int thread_count : {1, 2, 8}) {
    options_.thread_count = thread_count;
    options_.spare_count = 1;
    Start();
    std::set<uint64_t> endless;
    for (int i = 0; i < 3 * thread_count + 3; ++i) {
      endless.insert(workers_->Submit(Request("held")).value());
    }
    gate_.WaitForArrivals(thread_count);
    for (int i = 0; i < 20; ++i) {
      const auto id = workers_->Submit(Request("m"));
      EXPECT_EQ(TakeEnded(1)[0].id, id.value()) << thread_count;
    }
    // Requests of its own that nobody waits for end at once, and do not wait for its share.
    const auto cancelled = workers_->Submit(Request("held"));
    workers_->Cancel(cancelled.value());
    EXPECT_EQ(TakeEnded(1)[0].id, cancelled.value());
    gate_.Open();
    for (const EndedRequest& ended : TakeEnded(endless.size())) {
      EXPECT_EQ(endless.erase(ended.id), 1U);
    }
    workers_.reset();
    gate_.Reset();
  }
}

// Two models share what is left by the other's, so that a third one still finds a worker.
TEST_F(RestWorkersTest, EndlessRequestsOfTwoModelsLeaveAWorkerToAThird) {
  options_.thread_count = 4;
  options_.spare_count = 2;
  Scripted other("other", 1);
  ASSERT_TRUE(servable::PublishHighest(map_, other.entry).ok());
  options_.prepare = [this](const RestRequest&, std::string_view,
                            const servable::Servable& servable,
                            PreparedRest* prepared) -> base::Status {
    AnswerNothing(servable, prepared);
    return servable.id().name == "m" ? base::Status() : gate_.Pass(prepared->run.context);
  };
  Start();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(workers_->Submit(Request(i < 10 ? "held" : "other")).ok());
  }
  gate_.WaitForArrivals(options_.thread_count + 1);
  EXPECT_TRUE(Answer(Request("m")).status.ok());
  gate_.Open();
  EXPECT_EQ(TakeEnded(20).size(), 20U);
}

TEST_F(RestWorkersTest, AStopEndsRequestsThatWaitForTheirShare) {
  options_.thread_count = 2;
  options_.spare_count = 1;
  Start();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(2);
  EXPECT_FALSE(workers_->Shutdown(0));
  EXPECT_EQ(TakeEnded(6).size(), 6U);
}

TEST_F(RestWorkersTest, MoreThanMayWaitAreRefusedAtOnce) {
  options_.waiting_count_max = 2;
  Start();
  for (int running = 0; running < options_.thread_count; ++running) {
    ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  }
  gate_.WaitForArrivals(options_.thread_count);
  ASSERT_TRUE(workers_->Submit(Request("m")).ok());
  ASSERT_TRUE(workers_->Submit(Request("m")).ok());
  EXPECT_EQ(workers_->Submit(Request("m")).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(CountOf(*statistics_->unmatched(), Method::kRestPredict, Code::kResourceExhausted), 1);
  gate_.Open();
  EXPECT_EQ(TakeEnded(4).size(), 4U);
}

TEST_F(RestWorkersTest, AdmissionCountsARequestUntilItHasEnded) {
  options_.admission = std::make_shared<servable::Admission>(1);
  Start();
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(1);
  EXPECT_EQ(workers_->Submit(Request("m")).status().code(), Code::kResourceExhausted);
  gate_.Open();
  TakeEnded(1);
  EXPECT_EQ(options_.admission->in_flight_count(), 0);
  EXPECT_TRUE(Answer(Request("m")).status.ok());
}

TEST_F(RestWorkersTest, ACancelledRunEnds) {
  Start();
  const auto id = workers_->Submit(Request("held"));
  gate_.WaitForArrivals(1);
  workers_->Cancel(id.value());
  EXPECT_EQ(TakeEnded(1)[0].status.code(), Code::kCancelled);
  workers_->Cancel(id.value());
}

TEST_F(RestWorkersTest, ARunCancelledAfterItsDeadlineHasExceededIt) {
  Start();
  RestRequest request = Request("held");
  request.deadline_ns = base::MonotonicNs() + 20'000'000;
  const auto id = workers_->Submit(request);
  // The gate ignores deadlines, like a long kernel.
  gate_.WaitForArrivals(1);
  while (base::MonotonicNs() < request.deadline_ns) std::this_thread::yield();
  workers_->Cancel(id.value());
  EXPECT_EQ(TakeEnded(1)[0].status.code(), Code::kDeadlineExceeded);
}

TEST_F(RestWorkersTest, ExpiredOrCancelledWaitersDoNotRun) {
  options_.thread_count = 1;
  Start();
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(1);
  RestRequest late = Request("held");
  late.deadline_ns = base::MonotonicNs() - 1;
  ASSERT_TRUE(workers_->Submit(std::move(late)).ok());
  const auto cancelled = workers_->Submit(Request("held"));
  workers_->Cancel(cancelled.value());
  gate_.Open();
  const std::vector<EndedRequest> ended = TakeEnded(3);
  EXPECT_EQ(ended[1].status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ended[2].status.code(), Code::kCancelled);
  EXPECT_EQ(gate_.arrived_count(), 1);
}

TEST_F(RestWorkersTest, CompressedBodiesAreInflatedWithinTheLimit) {
  options_.body_bytes_max = 10'000;
  Start();
  const std::string body(10'000, 'x');
  const std::string bomb(10'001, 'x');
  const std::string compressed(Gzip(body, {}).value().view());
  const std::string compressed_bomb(Gzip(bomb, {}).value().view());
  RestRequest request = Request("m", compressed);
  request.headers = Header("content-encoding", "gzip");
  EXPECT_EQ(Answer(std::move(request)).reply.body.view(), body);
  request = Request("m", compressed_bomb);
  request.headers = Header("content-encoding", "gzip");
  EXPECT_EQ(Answer(std::move(request)).status.code(), Code::kResourceExhausted);
  request = Request("m", body);
  request.headers = Header("content-encoding", "br");
  EXPECT_EQ(Answer(std::move(request)).status.code(), Code::kInvalidArgument);
}

TEST_F(RestWorkersTest, OnlyLargeRepliesToClientsThatAcceptItAreCompressed) {
  Start();
  const std::string large(2'000, 'x');
  const auto coding_of = [&](const std::string& accepted, std::string_view body) {
    RestRequest request = Request("m", body);
    request.headers = Header("accept-encoding", accepted);
    const EndedRequest ended = Answer(std::move(request));
    EXPECT_EQ(ended.reply.body.view() == body, ended.coding == ContentCoding::kIdentity);
    return ended.coding;
  };
  EXPECT_EQ(coding_of("deflate, gzip;q=0.5", large), ContentCoding::kGzip);
  EXPECT_EQ(coding_of("gzip;q=0, br", large), ContentCoding::kIdentity);
  EXPECT_EQ(coding_of("identity", large), ContentCoding::kIdentity);
  EXPECT_EQ(coding_of("gzip", "small"), ContentCoding::kIdentity);
}

TEST_F(RestWorkersTest, ASampledRequestIsOfferedAsASpan) {
  options_.spans = std::make_shared<metrics::SpanBuffer>(metrics::SpanBuffer::Limits{});
  Start();
  RestRequest request = Request("m");
  request.headers =
      Header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  Answer(std::move(request));
  Answer(Request("m"));
  const std::vector<metrics::RequestSpan> spans = options_.spans->Take(10);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].method, Method::kRestPredict);
  EXPECT_EQ(spans[0].model, "m");
  EXPECT_EQ(spans[0].version, 7);
  EXPECT_EQ(spans[0].response_bytes, 4U);
}

TEST_F(RestWorkersTest, ShutdownLetsRunsFinish) {
  Start();
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(1);
  gate_.Open();
  EXPECT_TRUE(workers_->Shutdown(kForeverNs));
  EXPECT_TRUE(workers_->TakeEnded()[0].status.ok());
  EXPECT_EQ(workers_->Submit(Request("m")).status().code(), Code::kUnavailable);
}

TEST_F(RestWorkersTest, ShutdownCancelsRunsThatTakeTooLong) {
  Start();
  ASSERT_TRUE(workers_->Submit(Request("held")).ok());
  gate_.WaitForArrivals(1);
  EXPECT_FALSE(workers_->Shutdown(0));
  EXPECT_EQ(workers_->TakeEnded()[0].status.code(), Code::kCancelled);
  EXPECT_FALSE(workers_->Shutdown(0));
}

TEST_F(RestWorkersTest, EveryRequestOfManyThreadsEndsOnceWithItsOwnBody) {
  constexpr int kThreadCount = 4;
  constexpr int kRequestCount = 250;
  options_.thread_count = 4;
  Start();
  std::vector<std::vector<std::string>> bodies(kThreadCount);
  testing::RunTogether(kThreadCount, [&](int thread) {
    for (int i = 0; i < kRequestCount; ++i) {
      bodies[thread].push_back(std::to_string(thread) + ":" + std::to_string(i));
    }
    for (const std::string& body : bodies[thread]) {
      ASSERT_TRUE(workers_->Submit(Request("m", body)).ok());
    }
  });
  std::set<std::string> answered;
  std::set<uint64_t> ids;
  for (const EndedRequest& ended : TakeEnded(kThreadCount * kRequestCount)) {
    answered.emplace(ended.reply.body.view());
    ids.insert(ended.id);
  }
  EXPECT_EQ(answered.size(), static_cast<size_t>(kThreadCount * kRequestCount));
  EXPECT_EQ(ids.size(), answered.size());
}

TEST(RequestHeadersTest, FindsTheFirstOfAName) {
  const RequestHeaders headers({{"a", "1"}, {"b", "2"}, {"a", "3"}});
  EXPECT_EQ(headers.Find("a"), "1");
  EXPECT_EQ(headers.Find("c"), std::nullopt);
}

TEST_F(RestWorkersTest, OnlyAnsweredRequestsAreSampled) {
  const auto reservoir =
      std::make_shared<servable::RequestReservoir>(servable::RequestReservoirLimits());
  const Scripted sampled("sampled", 1, {}, reservoir);
  ASSERT_TRUE(servable::PublishHighest(map_, sampled.entry).ok());
  options_.prepare = [](const RestRequest&, std::string_view body,
                        const servable::Servable& servable, PreparedRest* prepared) {
    AnswerNothing(servable, prepared);
    prepared->run.signatures = {&servable.signatures().begin()->second};
    prepared->run.outputs = tensor::OutputSet::All(2);
    prepared->run.inputs.Reset(1);
    prepared->run.inputs.storage().tensors[0].bytes = body;
    prepared->encode = [body](servable::PreparedRun*, RestReply*) {
      return body == "fail" ? base::Internal("the output has no JSON") : base::Status();
    };
    return base::Status();
  };
  // A single worker, which finishes one request before it takes the next.
  options_.thread_count = 1;
  Start();
  EXPECT_EQ(Answer(Request("sampled", "fail")).status.code(), Code::kInternal);
  EXPECT_TRUE(Answer(Request("sampled", "body")).status.ok());
  while (reservoir->Statistics().request_count == 0) std::this_thread::yield();
  const auto kept = reservoir->Requests(base::MonotonicNs());
  ASSERT_EQ(kept.size(), 1);
  const auto spec = testing::ModelSpecMessage("sampled", {}, "serving_default");
  EXPECT_EQ(kept[0].bytes, testing::PredictMessage(spec, {{"x", "body"}}));
}

}  // namespace
}  // namespace millpond::rest
