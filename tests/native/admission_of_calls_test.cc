// Requests beyond the limits of a real server: refused, queued and drained.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "tests/native/served_models.h"
#include "tests/native/serving_maps.h"
#include "tests/native/threads.h"

// A function of AddressSanitizer, for which Debian's GCC has no header.
extern "C" size_t __sanitizer_get_current_allocated_bytes();

namespace millpond::rpc {
namespace {

using base::Code;
using testing::kCheckPath;
using testing::kForeverNs;
using testing::kMetadataPath;
using testing::kPredictPath;
using testing::kTensor;
using testing::ModelSpecMessage;
using testing::PredictMessage;
using testing::RawClient;
using testing::Scripted;
using testing::WireMessage;

using Replies = std::vector<std::future<RawClient::Reply>>;

// Two threads, and no relief threads.
constexpr int kRunCount = 2;

class AdmissionOfCallsTest : public testing::ServedModels {
 protected:
  void StartWith(int64_t total_limit, const servable::Admission::ModelLimits& of_models = {}) {
    admission_ = std::make_shared<servable::Admission>(total_limit);
    admission_->SetModelLimits(of_models);
    options_.admission = admission_;
    options_.max_thread_count = kRunCount;
    Start();
  }

  Replies Begin(int count, const std::string& name) {
    Replies replies;
    for (int i = 0; i < count; ++i) replies.push_back(client_->Begin(kPredictPath, Request(name)));
    return replies;
  }

  void WaitUntilInFlight(int64_t count) {
    while (admission_->in_flight_count() != count) std::this_thread::yield();
  }

  static void ExpectAllOk(Replies* replies) {
    for (auto& reply : *replies) {
      const RawClient::Reply answer = reply.get();
      EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    }
  }

  std::shared_ptr<servable::Admission> admission_;
};

TEST_F(AdmissionOfCallsTest, LimitRefusesExcessRequestsAtOnce) {
  StartWith(5);
  Replies held = BeginHeld(kRunCount);
  Replies queued = Begin(3, "held");
  WaitUntilInFlight(5);
  for (int call = 0; call < 20; ++call) {
    grpc::ClientContext context;
    const RawClient::Reply refused = client_->Call(kPredictPath, Request("m"), &context);
    EXPECT_EQ(refused.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(refused.status.error_message().find("5 requests are in flight"), std::string::npos)
        << refused.status.error_message();
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto pushback = trailers.find("grpc-retry-pushback-ms");
    ASSERT_NE(pushback, trailers.end());
    const int pushback_ms =
        std::stoi(std::string(pushback->second.data(), pushback->second.size()));
    EXPECT_GE(pushback_ms, 50);
    EXPECT_LE(pushback_ms, 150);
  }
  const metrics::RequestSnapshot unmatched = UnmatchedRequests();
  EXPECT_EQ(unmatched.count_by_code[static_cast<size_t>(Code::kResourceExhausted)], 20);
  EXPECT_EQ(quick_.servable->run_count(), 0);
  gate_.Open();
  ExpectAllOk(&held);
  ExpectAllOk(&queued);
  // A request that has its answer is not in flight any more.
  EXPECT_EQ(admission_->in_flight_count(), 0);
  EXPECT_TRUE(Predict("m").status.ok());
}

TEST_F(AdmissionOfCallsTest, FullServerStillAnswersHealthAndCountsMetadata) {
  StartWith(kRunCount);
  server_->SetHealth("", true);
  Replies held = BeginHeld(kRunCount);
  EXPECT_TRUE(client_->Call(kCheckPath, "").status.ok());
  const std::string metadata =
      WireMessage().Message(1, ModelSpecMessage("m")).Bytes(2, "signature_def").bytes();
  EXPECT_EQ(client_->Call(kMetadataPath, metadata).code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  gate_.Open();
  ExpectAllOk(&held);
  EXPECT_TRUE(client_->Call(kMetadataPath, metadata).status.ok());
}

TEST_F(AdmissionOfCallsTest, ASlowModelsLimitLeavesThreadsToTheOthers) {
  StartWith(100, {{"held", 1}});
  Replies held = BeginHeld(1);
  for (int call = 0; call < 10; ++call) {
    const RawClient::Reply refused = Predict("held");
    EXPECT_EQ(refused.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(refused.status.error_message().find("'held'"), std::string::npos);
    EXPECT_TRUE(Predict("m").status.ok());
  }
  gate_.Open();
  ExpectAllOk(&held);
}

TEST_F(AdmissionOfCallsTest, AMultiInferenceIsARequestToItsFirstTasksModel) {
  StartWith(100, {{"held", 1}});
  Replies held = BeginHeld(1);
  const WireMessage task = WireMessage().Message(1, ModelSpecMessage("held")).Bytes(2, "classify");
  const std::string request = WireMessage().Message(1, task).bytes();
  const char* const path = "/tensorflow.serving.PredictionService/MultiInference";
  EXPECT_EQ(client_->Call(path, request).code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  gate_.Open();
  ExpectAllOk(&held);
}

TEST_F(AdmissionOfCallsTest, RequestWithUnreadableModelCountsForNoModel) {
  StartWith(100, {{"m", 1}});
  EXPECT_EQ(client_->Call(kPredictPath, "\xff").code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client_->Call(kPredictPath, "").code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(admission_->in_flight_count(), 0);
}

// Requests of one model, because an extra thread would serve others beside a model that has all.
TEST_F(AdmissionOfCallsTest, QueuedRequestsRunInTheOrderOfTheirArrival) {
  std::mutex mutex;
  std::vector<int64_t> order;
  std::vector<std::unique_ptr<Scripted>> models;
  for (int version = 1; version <= 8; ++version) {
    models.push_back(std::make_unique<Scripted>("ordered", version, [&, version](const auto& run) {
      if (version == 1) (void)gate_.Pass(run);
      const std::lock_guard<std::mutex> lock(mutex);
      order.push_back(version);
      return base::Status();
    }));
    ASSERT_TRUE(servable::PublishHighest(map_, models.back()->entry).ok());
  }
  options_.thread_count = 1;
  admission_ = options_.admission = std::make_shared<servable::Admission>(100);
  options_.max_thread_count = 1;
  Start();
  Replies replies;
  for (int version = 1; version <= 8; ++version) {
    replies.push_back(client_->Begin(kPredictPath, Request("ordered", version)));
    WaitUntilInFlight(version);
  }
  gate_.WaitForArrivals(1);
  gate_.Open();
  ExpectAllOk(&replies);
  EXPECT_EQ(order, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(AdmissionOfCallsTest, AQueuedRequestWhoseClientHasGoneIsNotRun) {
  StartWith(100);
  Replies held = BeginHeld(kRunCount);
  grpc::ClientContext context;
  auto cancelled = client_->Begin(kPredictPath, Request("m"), &context);
  Replies waiting = Begin(1, "m");
  WaitUntilInFlight(kRunCount + 2);
  context.TryCancel();
  EXPECT_EQ(cancelled.get().code(), grpc::StatusCode::CANCELLED);
  // Requests of one connection stay in order: once this one has come, the cancellation has come
  // too.
  (void)client_->Call(kCheckPath, "");
  gate_.Open();
  ExpectAllOk(&held);
  ExpectAllOk(&waiting);
  WaitUntilInFlight(0);
  EXPECT_EQ(quick_.servable->run_count(), 1);
  // The wait for its turn is a part of its latency.
  const auto latency = quick_.entry->requests().Of(metrics::Method::kPredict).Summary().latency;
  EXPECT_EQ(latency.count(), 2);
}

TEST_F(AdmissionOfCallsTest, DrainAnswersQueuedRequests) {
  StartWith(100);
  Replies held = BeginHeld(kRunCount);
  Replies queued = Begin(20, "m");
  WaitUntilInFlight(kRunCount + 20);
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(kForeverNs); });
  while (RawClient(server_->port()).Call(kCheckPath, "").code() != grpc::StatusCode::UNAVAILABLE) {
  }
  gate_.Open();
  ExpectAllOk(&held);
  ExpectAllOk(&queued);
  EXPECT_TRUE(drained.get());
}

TEST_F(AdmissionOfCallsTest, ShortenedDrainEndsQueuedRequests) {
  StartWith(100);
  Replies held = BeginHeld(kRunCount);
  Replies queued = Begin(20, "m");
  WaitUntilInFlight(kRunCount + 20);
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  for (auto& reply : held) EXPECT_FALSE(reply.get().status.ok());
  for (auto& reply : queued) EXPECT_FALSE(reply.get().status.ok());
  EXPECT_EQ(quick_.servable->run_count(), 0);
  EXPECT_EQ(admission_->in_flight_count(), 0);
}

// The runs are shorter than a watchdog's tick, so only the threads that run them can refuse.
TEST_F(AdmissionOfCallsTest, ThreadsThatAreAlwaysBusyRefuseToo) {
  Scripted busy("busy", 1, [](const tensor::RunContext&) {
    const int64_t end_ns = base::MonotonicNs() + 1'000'000;
    while (base::MonotonicNs() < end_ns) std::this_thread::yield();
    return base::Status();
  });
  ASSERT_TRUE(servable::PublishHighest(map_, busy.entry).ok());
  StartWith(10);
  int sent_count = 0;
  int ok_count = 0;
  int refused_count = 0;
  // On a busy machine few requests of a burst meet a full server, or few get in.
  while (refused_count <= 100 || ok_count <= 10) {
    Replies replies = Begin(400, "busy");
    sent_count += 400;
    for (auto& reply : replies) {
      const grpc::StatusCode code = reply.get().code();
      ok_count += code == grpc::StatusCode::OK ? 1 : 0;
      refused_count += code == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    }
  }
  EXPECT_EQ(ok_count + refused_count, sent_count);
  EXPECT_EQ(busy.servable->run_count(), ok_count);
}

// Many clients in a closed loop, long and short runs, and a limit that is reached and left all the
// time.
TEST_F(AdmissionOfCallsTest, NothingIsLostOnTheWayInAndOutOfOverload) {
  Scripted mixed("mixed", 1, [](const tensor::RunContext&) {
    thread_local int run = 0;
    if (++run % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(15));
    return base::Status();
  });
  ASSERT_TRUE(servable::PublishHighest(map_, mixed.entry).ok());
  StartWith(8);
  std::atomic<int> ok_count{0};
  testing::RunTogether(12, [&](int) {
    for (int call = 0; call < 150; ++call) {
      const grpc::StatusCode code = Predict("mixed").code();
      EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::RESOURCE_EXHAUSTED)
          << code;
      ok_count += code == grpc::StatusCode::OK ? 1 : 0;
    }
  });
  EXPECT_EQ(mixed.servable->run_count(), ok_count);
  EXPECT_EQ(admission_->in_flight_count(), 0);
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
}

// --- memory ---

// Returns the bytes that are allocated. (AddressSanitizer keeps the pages of what is freed.)
int64_t AllocatedBytes() { return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes()); }

// The server checks the model's name on arrival.
TEST_F(AdmissionOfCallsTest, AQueuedRequestStaysCompressed) {
  constexpr int kQueuedCount = 20;
  constexpr int64_t kTensorBytes = 1'000'000;
  StartWith(100, {{"m", 100}});
  Replies held = BeginHeld(kRunCount);
  const std::string request =
      PredictMessage(ModelSpecMessage("m"), {{"x", std::string(kTensorBytes, 'x')}}, {"y"});
  const int64_t before_bytes = AllocatedBytes();
  std::vector<grpc::ClientContext> contexts(kQueuedCount);
  Replies queued;
  for (int i = 0; i < kQueuedCount; ++i) {
    contexts[i].set_compression_algorithm(GRPC_COMPRESS_GZIP);
    queued.push_back(client_->Begin(kPredictPath, request, &contexts[i]));
    WaitUntilInFlight(kRunCount + i + 1);
  }
  EXPECT_LT(AllocatedBytes() - before_bytes, kQueuedCount * kTensorBytes / 2);
  gate_.Open();
  ExpectAllOk(&held);
  ExpectAllOk(&queued);
}

// A request of 1 GB would otherwise hold the thread up that reads the network.
TEST_F(AdmissionOfCallsTest, AMessageIsNotDecompressedToBeRefused) {
  options_.max_message_bytes = 100'000;
  StartWith(100, {{"held", 1}});
  Replies held = BeginHeld(1);
  const std::string request =
      PredictMessage(ModelSpecMessage("held"), {{"x", std::string(1'000'000, 'x')}});
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const RawClient::Reply refused = client_->Call(kPredictPath, request, &context);
  EXPECT_NE(refused.status.error_message().find("'held'"), std::string::npos)
      << "not too long, but one too many: " << refused.status.error_message();
  gate_.Open();
  ExpectAllOk(&held);
}

// --- keepalive ---

grpc::ChannelArguments PingEachMs() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt("grpc.http2.min_time_between_pings_ms", 1);
  return arguments;
}

TEST_F(AdmissionOfCallsTest, AClientThatPingsWithoutEndLosesItsConnection) {
  StartWith(100);
  const RawClient pinging("127.0.0.1:" + std::to_string(server_->port()),
                          grpc::InsecureChannelCredentials(), PingEachMs());
  const RawClient::Reply reply = pinging.Begin(kPredictPath, Request("held")).get();
  EXPECT_EQ(reply.code(), grpc::StatusCode::UNAVAILABLE) << reply.status.error_message();
}

}  // namespace
}  // namespace millpond::rpc
