#include "native/rpc/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"
#include "native/rpc/place_limits.h"
#include "tests/native/descriptor_table.h"
#include "tests/native/raw_http2.h"
#include "tests/native/served_models.h"
#include "tests/native/serving_maps.h"
#include "tests/native/temporary_directory.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using base::Code;
using testing::kAck;
using testing::kCheckPath;
using testing::kForeverNs;
using testing::kGoawayFrame;
using testing::kMetadataPath;
using testing::kPredictPath;
using testing::kSettingsFrame;
using testing::kTensor;
using testing::LabelSpecMessage;
using testing::ModelSpecMessage;
using testing::PredictMessage;
using testing::PredictResponse;
using testing::RawClient;
using testing::RawHttp2;
using testing::Reversed;
using testing::Scripted;
using testing::WireMessage;

using ServerTest = testing::ServedModels;

// Threads in the steady state, and threads that may run requests at a time (server.cc).
int RegularCount() { return static_cast<int>(base::AllowedCores().size()); }
int MaxRunCount() { return 4 * RegularCount(); }

int64_t CountOf(const metrics::RequestSnapshot& requests, Code code) {
  return requests.count_by_code[static_cast<size_t>(code)];
}

TEST_F(ServerTest, PredictIsRecordedByTheVersionThatAnswered) {
  Start();
  const RawClient::Reply reply = Predict("m");
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const PredictResponse response = testing::ParsePredictResponse(reply.bytes);
  ASSERT_TRUE(response.parses);
  EXPECT_EQ(response.version, 7);
  EXPECT_EQ(response.outputs.at("x_back"), kTensor);
  EXPECT_EQ(response.outputs.at("y"), Reversed(kTensor));
  WaitUntilUnpinned(*quick_.entry);
  EXPECT_EQ(CountOf(quick_.entry->requests().Of(metrics::Method::kPredict).Summary(), Code::kOk),
            1);
  EXPECT_EQ(UnmatchedRequests().latency.count(), 0);
}

// A connection for which the table of descriptors must grow would wait for all cores.
TEST_F(ServerTest, NoConnectionWaitsForTheTableOfDescriptors) {
  Start();
  const Descriptors now = Descriptors::Now();
  EXPECT_GE(testing::DescriptorTableLength(),
            std::min(PlaceLimits::OfGrpc(now, 0).descriptor_max, Descriptors::kRoomMax));
}

TEST_F(ServerTest, ALargeTensorComesAndGoesWhole) {
  Start();
  std::string x;
  for (int i = 0; i < 1'000'000; ++i) x += std::to_string(i);
  const RawClient::Reply reply =
      client_->Call(kPredictPath, PredictMessage(ModelSpecMessage("m"), {{"x", x}}));
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const PredictResponse response = testing::ParsePredictResponse(reply.bytes);
  ASSERT_TRUE(response.parses);
  EXPECT_TRUE(response.outputs.at("x_back") == x);
  EXPECT_TRUE(response.outputs.at("y") == Reversed(x));
}

TEST_F(ServerTest, ConcurrentClientsEachGetTheirOwnAnswer) {
  Start();
  testing::RunTogether(4, [&](int thread) {
    for (int call = 0; call < 100; ++call) {
      const std::string x = std::to_string(thread * 1'000 + call);
      const RawClient::Reply reply =
          client_->Call(kPredictPath, PredictMessage(ModelSpecMessage("m"), {{"x", x}}, {"y"}));
      const PredictResponse response = testing::ParsePredictResponse(reply.bytes);
      ASSERT_TRUE(reply.status.ok() && response.parses);
      ASSERT_EQ(response.outputs.at("y"), Reversed(x));
    }
  });
  WaitUntilUnpinned(*quick_.entry);
  EXPECT_EQ(CountOf(quick_.entry->requests().Of(metrics::Method::kPredict).Summary(), Code::kOk),
            400);
}

TEST_F(ServerTest, BadRequestsGetTheirCodeAndAreCounted) {
  Start();
  const auto expect = [&](const std::string& request, grpc::StatusCode code) {
    EXPECT_EQ(client_->Call(kPredictPath, request).code(), code);
  };
  expect("\xff", grpc::StatusCode::INVALID_ARGUMENT);
  expect("", grpc::StatusCode::INVALID_ARGUMENT);
  expect(Request(""), grpc::StatusCode::INVALID_ARGUMENT);
  expect(Request("nobody"), grpc::StatusCode::NOT_FOUND);
  expect(Request("m", 8), grpc::StatusCode::NOT_FOUND);
  // A request is recorded before it is answered.
  const metrics::RequestSnapshot unmatched = UnmatchedRequests();
  EXPECT_EQ(CountOf(unmatched, Code::kInvalidArgument), 3);
  EXPECT_EQ(CountOf(unmatched, Code::kNotFound), 2);
  expect(PredictMessage(ModelSpecMessage("m"), {}), grpc::StatusCode::INVALID_ARGUMENT);
  expect(PredictMessage(ModelSpecMessage("m", {}, "q"), {}), grpc::StatusCode::FAILED_PRECONDITION);
  WaitUntilUnpinned(*quick_.entry);
  EXPECT_EQ(quick_.entry->requests().Of(metrics::Method::kPredict).Summary().latency.count(), 2);
  EXPECT_EQ(quick_.servable->run_count(), 0);
}

TEST_F(ServerTest, MetadataIsAnswered) {
  Start();
  const std::string request =
      WireMessage().Message(1, ModelSpecMessage("m")).Bytes(2, "signature_def").bytes();
  const RawClient::Reply reply = client_->Call(kMetadataPath, request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_NE(reply.bytes.find("the signatures"), std::string::npos);
  EXPECT_EQ(client_->Call(kMetadataPath, "\xff").code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, AnUnknownMethodIsUnimplemented) {
  Start();
  for (const char* path : {"/tensorflow.serving.PredictionService/Guess", "/nothing/Predict"}) {
    const RawClient::Reply reply = client_->Call(path, "");
    EXPECT_EQ(reply.code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_EQ(reply.status.error_message(), std::string("this server has no method ") + path);
  }
}

TEST_F(ServerTest, AMessageOverTheLimitIsRefusedEitherWay) {
  options_.max_message_bytes = 1'000;
  options_.reply_bytes_max = 1'000;
  Start();
  const auto call = [&](size_t tensor_bytes) {
    const std::string x(tensor_bytes, 'x');
    return client_->Call(kPredictPath, PredictMessage(ModelSpecMessage("m"), {{"x", x}}));
  };
  EXPECT_EQ(call(1'000).code(), grpc::StatusCode::RESOURCE_EXHAUSTED);  // the request
  EXPECT_EQ(quick_.servable->run_count(), 0);
  EXPECT_EQ(call(600).code(), grpc::StatusCode::RESOURCE_EXHAUSTED);  // the reply, of two tensors
  EXPECT_TRUE(call(300).status.ok());
}

TEST_F(ServerTest, ALongErrorMessageIsCutAtTheEndOfACharacter) {
  Scripted failing("failing", 1, [](const tensor::RunContext&) {
    std::string message = "x";
    for (int i = 0; i < 5'000; ++i) message += "é";
    return base::Internal(message);
  });
  ASSERT_TRUE(servable::PublishHighest(map_, failing.entry).ok());
  Start();
  const RawClient::Reply reply = Predict("failing");
  EXPECT_EQ(reply.code(), grpc::StatusCode::INTERNAL);
  EXPECT_LT(reply.status.error_message().size(), 1'100);
  EXPECT_TRUE(base::IsValidUtf8(reply.status.error_message()));
  EXPECT_NE(reply.status.error_message().find("TRUNCATED"), std::string::npos);
}

TEST_F(ServerTest, MutatedRequestsNeitherCrashItNorLeakAHandle) {
  Start();
  std::mt19937_64 rng(2'000);
  const std::string original =
      PredictMessage(ModelSpecMessage("m", 7, "serving_default"), {{"x", kTensor}}, {"y"});
  for (int mutation = 0; mutation < 300; ++mutation) {
    (void)client_->Call(kPredictPath, testing::Mutate(original, rng));
  }
  EXPECT_TRUE(Predict("m").status.ok());
  WaitUntilUnpinned(*quick_.entry);
  const int64_t recorded_count =
      quick_.entry->requests().Of(metrics::Method::kPredict).Summary().latency.count() +
      UnmatchedRequests().latency.count();
  EXPECT_EQ(recorded_count, 301);
}

// --- routing ---

// Versions 7 and 8 of "m".
class RoutingTest : public ServerTest {
 protected:
  RoutingTest() : next_("m", 8) { EXPECT_TRUE(servable::PublishHighest(map_, next_.entry).ok()); }

  void Route(const servable::Routing& routing) { ASSERT_TRUE(map_.SetRouting("m", routing).ok()); }

  // Returns the version in the response, or -1 if the request fails.
  int64_t AnsweringVersion(const WireMessage& spec, const std::string& user = "") {
    grpc::ClientContext context;
    if (!user.empty()) context.AddMetadata("user-id", user);
    const RawClient::Reply reply =
        client_->Call(kPredictPath, PredictMessage(spec, {{"x", kTensor}}), &context);
    if (!reply.status.ok()) return -1;
    return testing::ParsePredictResponse(reply.bytes).version;
  }

  Scripted next_;
};

TEST_F(RoutingTest, PredictFollowsLabelsAndReturnsTheVersion) {
  Route({7, {{"stable", 7}, {"next", 8}}});
  Start();
  EXPECT_EQ(AnsweringVersion(ModelSpecMessage("m")), 7);
  EXPECT_EQ(AnsweringVersion(ModelSpecMessage("m", 8)), 8);
  EXPECT_EQ(AnsweringVersion(LabelSpecMessage("m", "next")), 8);
  EXPECT_EQ(AnsweringVersion(LabelSpecMessage("m", "stable")), 7);
  WaitUntilUnpinned(*next_.entry);
  EXPECT_EQ(CountOf(next_.entry->requests().Of(metrics::Method::kPredict).Summary(), Code::kOk), 2);
}

TEST_F(RoutingTest, UnmatchedLabelIsRefusedAndCounted) {
  Route({7, {{"later", 9}}});
  Start();
  const auto call = [&](const char* label) {
    return client_->Call(kPredictPath, PredictMessage(LabelSpecMessage("m", label), {}));
  };
  EXPECT_EQ(call("stable").code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(call("later").code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(UnmatchedRequests().latency.count(), 2);
}

TEST_F(RoutingTest, TheCanaryIsStickyByTheRequestsMetadata) {
  Route({7, {}, 8, 0.5, "user-id"});
  Start();
  // The sides of user-0 to user-3 in routing_test.cc.
  const std::vector<int64_t> expected = {8, 7, 8, 8};
  for (int round = 0; round < 10; ++round) {
    for (size_t user = 0; user < expected.size(); ++user) {
      const std::string name = "user-" + std::to_string(user);
      ASSERT_EQ(AnsweringVersion(ModelSpecMessage("m"), name), expected[user]) << name;
    }
  }
}

TEST_F(RoutingTest, ARequestWithoutTheCanarysHeaderGoesAtRandom) {
  Route({7, {}, 8, 0.5, "user-id"});
  Start();
  // 100 on one side cannot be chance.
  int canary_count = 0;
  for (int call = 0; call < 100; ++call) {
    canary_count += AnsweringVersion(ModelSpecMessage("m")) == 8 ? 1 : 0;
  }
  EXPECT_GT(canary_count, 0);
  EXPECT_LT(canary_count, 100);
}

// --- deadlines and cancellation ---

// Returns the deadline that a run sees if the client sends `left`.
class DeadlineTest : public ServerTest {
 protected:
  void SetUp() override {
    watched_ = std::make_unique<Scripted>("watched", 1, [this](const tensor::RunContext& run) {
      seen_ns_ = run.deadline_ns;
      return base::Status();
    });
    ASSERT_TRUE(servable::PublishHighest(map_, watched_->entry).ok());
    Start();
  }
  RawClient::Reply Call(gpr_timespec deadline) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    return client_->Call(kPredictPath, Request("watched"), &context);
  }

  std::atomic<int64_t> seen_ns_{0};
  std::unique_ptr<Scripted> watched_;
};

gpr_timespec InSeconds(int64_t seconds) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(seconds, GPR_TIMESPAN));
}

TEST_F(DeadlineTest, ARunSeesTheClientsDeadline) {
  const int64_t before_ns = base::MonotonicNs();
  ASSERT_TRUE(Call(InSeconds(100)).status.ok());
  EXPECT_GT(seen_ns_, before_ns + 90'000'000'000);
  EXPECT_LT(seen_ns_, base::MonotonicNs() + 101'000'000'000);
}

TEST_F(DeadlineTest, CallsWithoutADeadlineRunWithoutOne) {
  ASSERT_TRUE(Predict("watched").status.ok());
  EXPECT_EQ(seen_ns_, tensor::RunContext::kNoDeadline);
}

// Clients shorten a longer deadline to some years.
TEST_F(DeadlineTest, ADeadlineInManyThousandYearsIsNotOneThatHasPassed) {
  for (const int64_t years : {2, 200, 300, 1'000, 10'000}) {
    const RawClient::Reply reply = Call(InSeconds(years * 365 * 24 * 3'600));
    EXPECT_TRUE(reply.status.ok()) << years << ": " << reply.status.error_message();
    EXPECT_GT(seen_ns_, base::MonotonicNs() + int64_t{365 * 24 * 3'600} * 1'000'000'000) << years;
  }
}

TEST_F(ServerTest, AnExpiredRequestIsNotRun) {
  Start();
  auto held = BeginHeldOfAll(MaxRunCount());
  // No thread takes these requests before their deadlines. The server's clock for a deadline starts
  // when the request arrives: once the later one has passed, the earlier one has on both sides.
  grpc::ClientContext earlier;
  grpc::ClientContext later;
  earlier.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  later.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(220));
  auto expired = client_->Begin(kPredictPath, Request("m"), &earlier);
  EXPECT_EQ(client_->Call(kPredictPath, Request("nobody"), &later).code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(expired.get().code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(quick_.servable->run_count(), 0);
}

TEST_F(ServerTest, CancellationReachesALongRunAndFreesItsHold) {
  Start();
  grpc::ClientContext context;
  auto reply = client_->Begin(kPredictPath, Request("held"), &context);
  gate_.WaitForArrivals(1);
  EXPECT_EQ(held_.entry->handle_count(), 1);
  context.TryCancel();
  EXPECT_EQ(reply.get().code(), grpc::StatusCode::CANCELLED);
  WaitUntilUnpinned(*held_.entry);
  EXPECT_EQ(
      CountOf(held_.entry->requests().Of(metrics::Method::kPredict).Summary(), Code::kCancelled),
      1);
}

TEST_F(ServerTest, ADisconnectedClientsRunIsCancelled) {
  Start();
  auto client = std::make_unique<RawClient>(server_->port());
  grpc::ClientContext context;
  auto reply = client->Begin(kPredictPath, Request("held"), &context);
  gate_.WaitForArrivals(1);
  context.TryCancel();
  reply.wait();
  client.reset();
  WaitUntilUnpinned(*held_.entry);
}

TEST_F(ServerTest, ManyCancelledRunsLeaveNothingBehind) {
  Start();
  testing::RunTogether(4, [&](int) {
    for (int call = 0; call < 50; ++call) {
      grpc::ClientContext context;
      auto reply = client_->Begin(kPredictPath, Request("held"), &context);
      std::this_thread::yield();
      context.TryCancel();
      const RawClient::Reply ended = reply.get();
      EXPECT_EQ(ended.code(), grpc::StatusCode::CANCELLED) << ended.status.error_message();
    }
  });
  WaitUntilUnpinned(*held_.entry);
  EXPECT_TRUE(Predict("m").status.ok());
}

// --- long runs ---

TEST_F(ServerTest, LongRunsDelayNeitherHealthNorOtherRequests) {
  Start();
  server_->SetHealth("", true);
  auto held = BeginHeld(options_.thread_count);
  for (int call = 0; call < 10; ++call) {
    EXPECT_TRUE(Predict("m").status.ok());
    EXPECT_TRUE(client_->Call(kCheckPath, "").status.ok());
  }
  auto more = BeginHeld(2);
  EXPECT_TRUE(Predict("m").status.ok());
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
  for (auto& reply : more) EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(ServerTest, HealthIsAnsweredWhileAllRunsAreTaken) {
  Start();
  server_->SetHealth("", true);
  auto held = BeginHeldOfAll(MaxRunCount());
  EXPECT_TRUE(client_->Call(kCheckPath, "").status.ok());
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(ServerTest, WithAllItsRunsTakenACancellationStillReachesThem) {
  Start();
  std::vector<grpc::ClientContext> contexts(MaxRunCount());
  std::vector<std::future<RawClient::Reply>> replies;
  for (auto& context : contexts) {
    const std::string model = HeldName(static_cast<int>(replies.size()));
    replies.push_back(client_->Begin(kPredictPath, Request(model), &context));
  }
  gate_.WaitForArrivals(MaxRunCount());
  for (auto& context : contexts) context.TryCancel();
  WaitUntilUnpinned(*held_.entry);
  WaitUntilUnpinned(*also_held_.entry);
  for (const auto& [number, model] : more_held_) WaitUntilUnpinned(*model->entry);
  EXPECT_TRUE(Predict("m").status.ok());
}

TEST_F(ServerTest, OneModelsLongRunsLeaveThreadsToOthers) {
  Start();
  std::vector<std::future<RawClient::Reply>> held;
  for (int i = 0; i < 2 * MaxRunCount(); ++i) {
    held.push_back(client_->Begin(kPredictPath, Request("held")));
  }
  gate_.WaitForArrivals(2);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Predict("m").status.ok());
  EXPECT_LE(gate_.arrived_count(), MaxRunCount() - RegularCount());
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(ServerTest, RequestsBeyondAllRunsWaitAndAreAnswered) {
  Start();
  auto held = BeginHeldOfAll(MaxRunCount());
  std::vector<std::future<RawClient::Reply>> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(client_->Begin(kPredictPath, Request("m")));
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
  for (auto& reply : waiting) EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(ServerTest, AfterALongRunEachQueueServesAgain) {
  Start();
  for (int round = 0; round < 3; ++round) {
    testing::Gate gate;
    Scripted slow("slow", round, [&](const tensor::RunContext& run) { return gate.Pass(run); });
    ASSERT_TRUE(servable::PublishHighest(map_, slow.entry).ok());
    std::vector<std::future<RawClient::Reply>> replies;
    for (int i = 0; i < 4; ++i) replies.push_back(client_->Begin(kPredictPath, Request("slow")));
    gate.WaitForArrivals(4);
    gate.Open();
    for (auto& reply : replies) EXPECT_TRUE(reply.get().status.ok());
    for (int call = 0; call < 50; ++call) ASSERT_TRUE(Predict("m").status.ok());
    ASSERT_TRUE(servable::RetireVersion(map_, "slow", round).ok());
    ASSERT_TRUE(slow.entry->Quiesce(kForeverNs).value());
  }
}

// --- a swap under load ---

TEST_F(ServerTest, NoRequestFailsWhileVersionsAreSwapped) {
  Start();
  std::atomic<bool> is_over{false};
  std::thread swapper([&] {
    auto serving = std::make_unique<Scripted>("swapped", 0);
    ASSERT_TRUE(servable::PublishHighest(map_, serving->entry).ok());
    for (int64_t version = 1; !is_over; ++version) {
      auto next = std::make_unique<Scripted>("swapped", version);
      ASSERT_TRUE(servable::PublishHighest(map_, next->entry).ok());
      ASSERT_TRUE(servable::RetireVersion(map_, "swapped", version - 1).ok());
      ASSERT_TRUE(serving->entry->Quiesce(kForeverNs).value());
      ASSERT_TRUE(serving->entry->Destroy().ok());
      serving = std::move(next);
    }
    ASSERT_TRUE(servable::RetireVersion(map_, "swapped", serving->entry->id().version).ok());
    ASSERT_TRUE(serving->entry->Quiesce(kForeverNs).value());
  });
  while (map_.Versions("swapped").empty()) std::this_thread::yield();
  testing::RunTogether(2, [&](int) {
    for (int call = 0; call < 300; ++call) {
      const RawClient::Reply reply = Predict("swapped");
      ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    }
  });
  is_over = true;
  swapper.join();
}

// --- handed-in sockets ---

// A listening socket of the process that started the server: on a free port of 127.0.0.1, or at
// `path`.
class HeldSocket {
 public:
  explicit HeldSocket(const std::string& path = "")
      : fd_(socket(path.empty() ? AF_INET : AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_in tcp{};
    tcp.sin_family = AF_INET;
    tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_un file{};
    file.sun_family = AF_UNIX;
    path.copy(file.sun_path, sizeof file.sun_path - 1);
    const bool is_tcp = path.empty();
    const auto* const address =
        is_tcp ? reinterpret_cast<sockaddr*>(&tcp) : reinterpret_cast<sockaddr*>(&file);
    EXPECT_EQ(bind(fd_, address, is_tcp ? sizeof tcp : sizeof file), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
  }
  ~HeldSocket() { close(fd_); }
  HeldSocket(const HeldSocket&) = delete;
  HeldSocket& operator=(const HeldSocket&) = delete;

  int port() const {
    sockaddr_in bound{};
    socklen_t size = sizeof bound;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size), 0);
    return ntohs(bound.sin_port);
  }
  // Returns a descriptor for a server, which will own it.
  int HandIn() const { return dup(fd_); }

 private:
  int fd_;
};

std::string AddressOf(int fd) { return "fd:" + std::to_string(fd); }

TEST_F(ServerTest, AHandedInSocketServesOnItsPort) {
  const HeldSocket held;
  const int fd = held.HandIn();
  options_.addresses = {AddressOf(fd)};
  Start();
  EXPECT_EQ(server_->port(), held.port());
  EXPECT_TRUE(Predict("m").status.ok());
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  server_.reset();
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the server owns the descriptor";
}

TEST_F(ServerTest, ClientsOfAHandedInSocketWaitForTheNext) {
  const HeldSocket held;
  options_.addresses = {AddressOf(held.HandIn())};
  Start();
  EXPECT_TRUE(Predict("m").status.ok());
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  // The connection waits in the socket: neither the stop nor the end of the first server refuses
  // it.
  const RawClient client(held.port());
  auto reply = client.Begin(kPredictPath, Request("m"));
  EXPECT_EQ(reply.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  options_.addresses = {AddressOf(held.HandIn())};
  Start();
  EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(ServerTest, AHandedInUnixSocketKeepsItsFile) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("held.sock");
  const HeldSocket held(path);
  options_.addresses = {AddressOf(held.HandIn())};
  for (int i = 0; i < 2; ++i) {
    server_ = std::make_unique<Server>(&map_, options_);
    ASSERT_TRUE(server_->Start().ok());
    EXPECT_EQ(server_->port(), 0);
    EXPECT_TRUE(RawClient("unix:" + path).Call(kPredictPath, Request("m")).status.ok());
    server_.reset();
    options_.addresses = {AddressOf(held.HandIn())};
  }
}

TEST_F(ServerTest, RefusesDescriptorsThatDoNotListen) {
  const int unbound = socket(AF_INET, SOCK_STREAM, 0);
  const int datagram = socket(AF_INET, SOCK_DGRAM, 0);
  const int file = open("/dev/null", O_RDONLY);
  for (const std::string& address : {AddressOf(unbound), AddressOf(datagram), AddressOf(file),
                                     AddressOf(999'999), AddressOf(-1), std::string("fd:3x")}) {
    options_.addresses = {address};
    const base::Status refused = Server(&map_, options_).Start();
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_NE(refused.message().find(address), std::string::npos) << refused.message();
  }
  for (const int fd : {unbound, datagram, file}) EXPECT_EQ(close(fd), 0) << "still the caller's";
}

// --- start and shutdown ---

TEST_F(ServerTest, ASecondServerOnItsPortIsUnavailable) {
  Start();
  ServerOptions options;
  options.addresses = {"127.0.0.1:" + std::to_string(server_->port())};
  Server second(&map_, options);
  const base::Status refused = second.Start();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find(options.addresses[0]), std::string::npos) << refused.message();
  EXPECT_TRUE(Predict("m").status.ok());
}

TEST_F(ServerTest, IsStartedOnceOnly) {
  Start();
  EXPECT_EQ(server_->Start().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(Predict("m").status.ok());
  server_->Shutdown(0);
  EXPECT_EQ(server_->Start().code(), Code::kFailedPrecondition);
}

TEST_F(ServerTest, ListensOnAUnixSocketToo) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("server.sock");
  options_.addresses = {"unix:" + path, "127.0.0.1:0"};
  Start();
  EXPECT_GT(server_->port(), 0);
  const RawClient client("unix:" + path);
  EXPECT_TRUE(client.Call(kPredictPath, Request("m")).status.ok());
  EXPECT_TRUE(Predict("m").status.ok());
}

TEST_F(ServerTest, WithoutACallShutdownDrainsAtOnceAndAgain) {
  Start();
  EXPECT_TRUE(Predict("m").status.ok());
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_TRUE(server_->Shutdown(0));
  EXPECT_EQ(Predict("m").code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Server, NeverStartedItShutsDown) {
  servable::ServingMap map;
  Server server(&map, {});
  EXPECT_EQ(server.port(), 0);
  server.Shutdown(0);
}

TEST_F(ServerTest, ShutdownLetsRunningCallsFinish) {
  Start();
  auto held = BeginHeld(3);
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(kForeverNs); });
  // The port is closed once the drain has begun.
  while (RawClient(server_->port()).Call(kCheckPath, "").code() != grpc::StatusCode::UNAVAILABLE) {
  }
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
  EXPECT_TRUE(drained.get());
}

TEST_F(ServerTest, ShutdownCancelsRunsBeyondTheDrain) {
  Start();
  auto held = BeginHeld(3);
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  for (auto& reply : held) EXPECT_FALSE(reply.get().status.ok());
  EXPECT_EQ(held_.entry->handle_count(), 0);
  int64_t cancelled_count = 0;
  for (const auto& entry : {held_.entry, also_held_.entry}) {
    cancelled_count +=
        CountOf(entry->requests().Of(metrics::Method::kPredict).Summary(), Code::kCancelled);
  }
  EXPECT_EQ(cancelled_count, 3);
  EXPECT_FALSE(server_->Shutdown(kForeverNs));
}

// No relief thread has started yet.
TEST_F(ServerTest, ShutdownCancelsRunsThatHaveJustBegun) {
  Start();
  auto held = BeginHeld(options_.thread_count);
  EXPECT_FALSE(server_->Shutdown(0));
  for (auto& reply : held) EXPECT_FALSE(reply.get().status.ok());
  EXPECT_EQ(held_.entry->handle_count(), 0);
}

TEST_F(ServerTest, ShutdownCancelsARunOnEveryThread) {
  Start();
  auto held = BeginHeldOfAll(MaxRunCount());
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  for (auto& reply : held) EXPECT_FALSE(reply.get().status.ok());
  EXPECT_EQ(held_.entry->handle_count(), 0);
}

// More calls than threads: some calls are still queued when the server shuts down.
TEST_F(ServerTest, ShutdownWithMoreCallsThanItRunsEndsThemAll) {
  Start();
  auto held = BeginHeldOfAll(MaxRunCount());
  for (int i = 0; i < 20; ++i) {
    held.push_back(client_->Begin(i % 2 == 0 ? kPredictPath : kMetadataPath, Request("m")));
  }
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  for (auto& reply : held) (void)reply.get();
  EXPECT_EQ(held_.entry->handle_count(), 0);
  EXPECT_EQ(quick_.entry->handle_count(), 0);
}

// A kernel is never interrupted: the shutdown waits for its thread.
TEST_F(ServerTest, ShutdownAwaitsARunThatCancelsLate) {
  testing::Gate begun;
  testing::Gate cancelled;
  Scripted deaf("deaf", 1, [&](const tensor::RunContext& run) {
    begun.Open();
    (void)begun.Pass({});
    while (!run.is_cancelled->load()) std::this_thread::yield();
    return cancelled.Pass({});
  });
  ASSERT_TRUE(servable::PublishHighest(map_, deaf.entry).ok());
  Start();
  auto reply = client_->Begin(kPredictPath, Request("deaf"));
  begun.WaitForArrivals(1);
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(1'000'000); });
  cancelled.WaitForArrivals(1);
  EXPECT_EQ(deaf.entry->handle_count(), 1);
  cancelled.Open();
  EXPECT_FALSE(drained.get());
  EXPECT_FALSE(reply.get().status.ok());
  EXPECT_EQ(deaf.entry->handle_count(), 0);
}

// A request that arrives after the drain began is answered, or refused before it runs. The client
// of each request that the server ran has the answer.
TEST_F(ServerTest, ShutdownUnderLoadLosesNoReplyOfARun) {
  Start();
  std::atomic<int> answered_count{0};
  std::thread stopper([&] {
    while (answered_count < 100) std::this_thread::yield();
    EXPECT_TRUE(server_->Shutdown(kForeverNs));
  });
  testing::RunTogether(3, [&](int) {
    while (true) {
      const RawClient::Reply reply = Predict("m");
      if (!reply.status.ok()) {
        EXPECT_EQ(reply.code(), grpc::StatusCode::UNAVAILABLE)
            << reply.code() << " " << reply.status.error_message();
        return;
      }
      answered_count += 1;
    }
  });
  stopper.join();
  EXPECT_EQ(quick_.servable->run_count(), answered_count);
}

// The client has begun this call and sends no message.
TEST_F(ServerTest, ShutdownDoesNotAwaitCallsWithoutAMessage) {
  Start();
  grpc::ClientContext context;
  const RawClient::UnsentCall silent = client_->BeginWithoutMessage(kPredictPath, &context);
  // Requests of one connection stay in order: once this one has come, the other has come too.
  EXPECT_TRUE(Predict("m").status.ok());
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(silent->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Returns once the server has sent its settings, which the client has not acknowledged.
void BeginToConnect(RawHttp2* client) {
  client->Begin();
  ASSERT_NE(client->NextOf(kSettingsFrame), nullptr);
}

// gRPC's client may hang if a GOAWAY comes now.
TEST_F(ServerTest, ShutdownAsksNoConnectingClientToGo) {
  Start();
  RawHttp2 connection(server_->port());
  BeginToConnect(&connection);
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(connection.NextOf(kGoawayFrame), nullptr);
  EXPECT_TRUE(connection.IsClosedByServer());
}

TEST_F(ServerTest, ShutdownAtOnceAsksNoFreshClientToGo) {
  Start();
  RawHttp2 connection(server_->port());
  BeginToConnect(&connection);
  connection.SendFrame(kSettingsFrame, kAck, 0, "");
  EXPECT_TRUE(server_->Shutdown(0));
  EXPECT_EQ(connection.NextOf(kGoawayFrame), nullptr);
  EXPECT_TRUE(connection.IsClosedByServer());
}

TEST_F(ServerTest, ShutdownAsksAClientToGoOnceItHasConnected) {
  Start();
  RawHttp2 connection(server_->port());
  BeginToConnect(&connection);
  connection.SendFrame(kSettingsFrame, kAck, 0, "");
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(kForeverNs); });
  EXPECT_NE(connection.NextOf(kGoawayFrame), nullptr);
  EXPECT_TRUE(drained.get());
}

// Clients come until the port refuses them: none of them may hang.
TEST_F(ServerTest, ShutdownHangsNoClientThatConnects) {
  for (int round = 0; round < 20; ++round) {
    Start();
    std::atomic<bool> has_begun{false};
    auto codes = std::async(std::launch::async, [&] {
      std::vector<grpc::StatusCode> late;
      while (late.empty() || late.back() != grpc::StatusCode::UNAVAILABLE) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
        const RawClient client(server_->port());
        late.push_back(client.Call(kCheckPath, "", &context).code());
        has_begun.store(true);
      }
      return late;
    });
    while (!has_begun.load()) std::this_thread::yield();
    EXPECT_TRUE(server_->Shutdown(kForeverNs));
    for (const grpc::StatusCode code : codes.get()) {
      EXPECT_NE(code, grpc::StatusCode::DEADLINE_EXCEEDED);
    }
  }
}

// Calls that have arrived wait, because all threads are busy; the drain includes them.
TEST_F(ServerTest, ShutdownAnswersTheCallsThatWait) {
  Start();
  auto held = BeginHeldOfAll(MaxRunCount());
  std::vector<std::future<RawClient::Reply>> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(client_->Begin(kPredictPath, Request("m")));
  // Requests of one connection stay in order: once this one has come, the others have come too.
  server_->SetHealth("", true);
  EXPECT_TRUE(client_->Call(kCheckPath, "").status.ok());
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(kForeverNs); });
  while (RawClient(server_->port()).Call(kCheckPath, "").code() != grpc::StatusCode::UNAVAILABLE) {
  }
  gate_.Open();
  for (auto& reply : held) EXPECT_TRUE(reply.get().status.ok());
  for (auto& reply : waiting) EXPECT_TRUE(reply.get().status.ok());
  EXPECT_TRUE(drained.get());
}

TEST(WireVersions, NameBothLibraries) {
  EXPECT_NE(WireVersions().find("nghttp2 1."), std::string::npos);
  EXPECT_NE(WireVersions().find("OpenSSL 3."), std::string::npos);
}

}  // namespace
}  // namespace millpond::rpc
