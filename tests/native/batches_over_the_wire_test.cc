// A server with a batched model, and clients at once: each request is answered once, with its own
// rows, by one version. No gRPC library, so ThreadSanitizer sees all code.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/rest/rest_service.h"
#include "native/rpc/request_threads.h"
#include "native/rpc/server.h"
#include "native/servable/batching_servable.h"
#include "tests/native/group_count.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_http1.h"
#include "tests/native/raw_http2.h"
#include "tests/native/row_servable.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using testing::kDataFrame;
using testing::kEndHeaders;
using testing::kEndStream;
using testing::kHeadersFrame;
using testing::kRowsMark;
using testing::RawHttp2;
using testing::RowRun;
using testing::RowServable;
using Values = std::vector<int64_t>;

constexpr char kPredictPath[] = "/tensorflow.serving.PredictionService/Predict";

std::string PredictFrames(uint32_t stream, const Values& x) {
  const std::string bytes(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(int64_t));
  const std::string message =
      testing::PredictMessage(testing::ModelSpecMessage("m"), {{"x", kRowsMark + bytes}});
  return testing::FrameBytes(kHeadersFrame, kEndHeaders, stream,
                             testing::GrpcHeaders(kPredictPath)) +
         testing::FrameBytes(kDataFrame, kEndStream, stream, testing::GrpcMessage(message));
}

// A server of a RowServable, whose clients each send over a connection of their own.
class BatchedServerTest : public ::testing::Test {
 protected:
  struct Answer {
    std::string data;
    std::string trailers;
    int end_count = 0;
  };

  ~BatchedServerTest() override {
    server_->Shutdown(0);
    server_->ShutdownHttp(0);
  }

  void Start(int thread_count = 2) {
    Publish(1);
    ServerOptions options;
    options.addresses = {"127.0.0.1:0"};
    options.thread_count = thread_count;
    options.thread_group_count = testing::GroupCount();
    options.max_thread_count = max_thread_count_;
    options.admission = admission_;
    options.http = HttpOptions();
    options.make_http_routes = [](const ModelMethodParts& parts, const HttpDocuments* documents,
                                  const HttpOptions& http) {
      return std::make_unique<rest::RestService>(parts, documents,
                                                 static_cast<size_t>(http.body_bytes_max));
    };
    server_ = std::make_unique<Server>(&map_, options);
    const base::Status started = server_->Start();
    EXPECT_TRUE(started.ok()) << started.message();
    const base::Status http = server_->StartHttp({"127.0.0.1:0"});
    EXPECT_TRUE(http.ok()) << http.message();
  }

  std::shared_ptr<servable::ServableEntry> Publish(int64_t version) {
    auto batching = std::make_unique<servable::BatchingServable>(
        std::make_unique<RowServable>(servable::ServableId{"m", version}, watch_), settings_);
    const tensor::Signature& signature = batching->signatures().find("serving_default")->second;
    batching->LearnCost(signature, 4'096, 1);
    batching->TurnOn(signature, {2, 2, false});
    entries_.push_back(std::make_shared<servable::ServableEntry>(std::move(batching)));
    EXPECT_TRUE(PublishHighest(map_, entries_.back()).ok());
    return entries_.back();
  }

  // Sends all requests at once, on every second stream from `first_stream` on, and reads until each
  // has ended.
  static std::map<uint32_t, Answer> Ask(RawHttp2* connection, uint32_t first_stream,
                                        const std::vector<Values>& requests) {
    std::string frames;
    for (size_t i = 0; i < requests.size(); ++i) {
      frames += PredictFrames(first_stream + 2 * static_cast<uint32_t>(i), requests[i]);
    }
    connection->Send(frames);
    return Read(connection, requests.size());
  }
  // Reads until `count` requests have ended. Notes their streams in `ended`, if it is not null.
  static std::map<uint32_t, Answer> Read(RawHttp2* connection, size_t count,
                                         std::vector<uint32_t>* ended = nullptr) {
    std::map<uint32_t, Answer> answers;
    size_t ended_count = 0;
    while (ended_count < count) {
      const auto frame = connection->Next();
      if (frame == nullptr) break;
      Answer& answer = answers[frame->stream];
      if (frame->type == kDataFrame) answer.data += frame->payload;
      if (frame->type != kHeadersFrame) continue;
      answer.trailers += connection->Decode(*frame);
      if ((frame->flags & kEndStream) == 0) continue;
      answer.end_count += 1;
      ended_count += 1;
      if (ended != nullptr) ended->push_back(frame->stream);
    }
    return answers;
  }
  // Returns the version that answered; 0 for an answer that is not these rows'.
  static int64_t VersionOf(const Answer& answer, const Values& x) {
    EXPECT_EQ(answer.end_count, 1);
    if (answer.data.size() < 5) return 0;
    auto response = testing::ParsePredictResponse(answer.data.substr(5));
    Values y;
    Values z;
    for (const int64_t value : x) {
      y.push_back(RowServable::Y(value, response.version));
      z.push_back(-value);
    }
    const auto bytes_of = [](const Values& values) {
      return std::string(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(int64_t));
    };
    const bool is_own = response.parses && response.outputs["y"] == bytes_of(y) &&
                        response.outputs["z"] == bytes_of(z);
    return is_own ? response.version : 0;
  }
  // Returns the requests that were answered by the runs of others.
  static int64_t JoinedRequestCountOf(const servable::ServableEntry& entry) {
    int64_t count = 0;
    const auto& batching = static_cast<const servable::BatchingServable&>(entry.servable());
    for (const auto& each : batching.Batching()) {
      count += each.figures.request_count - each.figures.run_count;
    }
    return count;
  }
  int64_t JoinedRequestCount() const { return JoinedRequestCountOf(*entries_.back()); }

  RowServable::Watch watch_;
  servable::BatchSettings settings_;
  int max_thread_count_ = 0;
  const std::shared_ptr<servable::Admission> admission_ = std::make_shared<servable::Admission>();
  servable::ServingMap map_;
  std::vector<std::shared_ptr<servable::ServableEntry>> entries_;
  std::unique_ptr<Server> server_;
};

class BatchesOverTheWireTest : public BatchedServerTest {
 protected:
  BatchesOverTheWireTest() { Start(); }
};

TEST_F(BatchesOverTheWireTest, RequestsOfOneReadShareRuns) {
  std::vector<Values> requests;
  for (int64_t i = 0; i < 20; ++i) requests.push_back({100 * i + 1, 100 * i + 2});
  RawHttp2 connection(server_->port());
  connection.Begin();
  const auto answers = Ask(&connection, 1, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(VersionOf(answers.at(1 + 2 * static_cast<uint32_t>(i)), requests[i]), 1);
  }
  EXPECT_GT(JoinedRequestCount(), 0);
}

TEST_F(BatchesOverTheWireTest, BadRequestGetsItsErrorAndTheOthersTheirRows) {
  std::vector<Values> requests;
  for (int64_t i = 1; i <= 9; ++i) requests.push_back({i == 5 ? -5 : i});
  RawHttp2 connection(server_->port());
  connection.Begin();
  const auto answers = Ask(&connection, 1, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer& answer = answers.at(1 + 2 * static_cast<uint32_t>(i));
    if (requests[i][0] > 0) {
      EXPECT_EQ(VersionOf(answer, requests[i]), 1);
    } else {
      EXPECT_NE(answer.trailers.find("bad id -5"), std::string::npos) << answer.trailers;
    }
  }
}

TEST_F(BatchesOverTheWireTest, ClientsAtOnceGetTheirOwnRowsDuringSwaps) {
  constexpr int kClients = 4;
  constexpr int kRounds = 25;
  std::atomic<int> active_count{kClients};
  std::atomic<int64_t> answer_count{0};
  // Written by `swaps`.
  int64_t swap_count = 0;
  int64_t joined_count = 0;
  std::thread swaps([&] {
    for (int64_t version = 2; active_count > 0 && version < 50; ++version) {
      // Each version answers before the next one comes, however late the clients begin.
      const int64_t seen_count = answer_count;
      while (answer_count == seen_count && active_count > 0) std::this_thread::yield();
      const auto before = entries_.back();
      Publish(version);
      EXPECT_TRUE(servable::RetireVersion(map_, "m", version - 1).ok());
      const auto is_quiet = before->Quiesce(20'000'000'000);
      ASSERT_TRUE(is_quiet.ok() && is_quiet.value());
      joined_count += JoinedRequestCountOf(*before);
      EXPECT_TRUE(before->Destroy().ok());
      swap_count += 1;
      std::this_thread::yield();
    }
  });
  std::mutex versions_mutex;
  std::set<int64_t> versions;  // that answered; guarded by versions_mutex
  testing::RunTogether(kClients, [&](int client) {
    RawHttp2 connection(server_->port());
    connection.Begin();
    uint32_t stream = 1;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Values> requests;
      for (int64_t i = 0; i < 10; ++i) {
        requests.push_back(
            Values(static_cast<size_t>(1 + i % 3), client * 100'000 + round * 10 + i + 1));
      }
      const auto answers = Ask(&connection, stream, requests);
      for (const Values& request : requests) {
        const auto answer = answers.find(stream);
        ASSERT_NE(answer, answers.end());
        const int64_t version = VersionOf(answer->second, request);
        EXPECT_GT(version, 0) << answer->second.trailers;
        const std::lock_guard<std::mutex> lock(versions_mutex);
        versions.insert(version);
        answer_count += 1;
        stream += 2;
      }
    }
    active_count -= 1;
  });
  swaps.join();
  joined_count += JoinedRequestCount();
  // Else nothing was tried.
  EXPECT_GT(swap_count, 1);
  EXPECT_GT(versions.size(), 1U);
  EXPECT_GT(joined_count, 0);
}

// --- Requests over HTTP ---

class BatchesOfBothProtocolsTest : public BatchedServerTest {
 protected:
  BatchesOfBothProtocolsTest() {
    watch_ = [this](const RowRun& run) {
      return run.values == Values{kHeldRow} ? gate_.Pass(run.context) : base::Status();
    };
    max_thread_count_ = 1;
    Start(/*thread_count=*/1);
  }
  ~BatchesOfBothProtocolsTest() override { gate_.Open(); }

  static std::string RowsOf(int64_t row) {
    return testing::PostRequest("/v1/models/m:predict",
                                "{\"instances\": [" + std::to_string(row) + "]}");
  }
  static std::string BodyOf(int64_t row, int64_t version) {
    return "{\"predictions\": [{\"y\": " + std::to_string(RowServable::Y(row, version)) +
           ", \"z\": " + std::to_string(-row) + "}]}";
  }
  // Without the blanks, which are a matter of taste.
  static std::string Packed(std::string_view text) {
    std::string packed;
    for (const char c : text) {
      if (c != ' ' && c != '\n') packed += c;
    }
    return packed;
  }

  // A run of this row alone is held until the gate opens.
  static constexpr int64_t kHeldRow = 999;
  testing::Gate gate_;
};

// The only thread is busy with the held request, so the next ones wait, and a batch takes both. A
// round in which they come too late for one batch proves nothing.
TEST_F(BatchesOfBothProtocolsTest, RequestsOverHttpAndGrpcShareARun) {
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds && JoinedRequestCount() == 0; ++round) {
    gate_.Reset();
    testing::RawHttp1 held(server_->http_port());
    held.Send(RowsOf(kHeldRow));
    gate_.WaitForArrivals(1);
    testing::RawHttp1 over_http(server_->http_port());
    over_http.Send(RowsOf(5));
    RawHttp2 over_grpc(server_->port());
    over_grpc.Begin();
    over_grpc.Send(PredictFrames(1, {3}));
    while (admission_->in_flight_count() < 3) std::this_thread::yield();
    gate_.Open();
    EXPECT_EQ(VersionOf(Read(&over_grpc, 1).at(1), {3}), 1);
    const auto answer = over_http.Next();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(Packed(answer.body), Packed(BodyOf(5, 1)));
    EXPECT_EQ(Packed(held.Next().body), Packed(BodyOf(kHeldRow, 1)));
  }
  EXPECT_GT(JoinedRequestCount(), 0);
}

// --- Large requests ---

class PiecesOverTheWireTest : public BatchedServerTest {
 protected:
  // A run lasts until this has passed and the gate is open: two looks at the network are due in it.
  static constexpr int64_t kPieceNs = 2 * RequestThreads::kLookNs;
  static constexpr int64_t kPieceCount = 20;

  PiecesOverTheWireTest() {
    watch_ = [this](const RowRun& run) {
      const int64_t end_ns = base::MonotonicNs() + kPieceNs;
      MILLPOND_RETURN_IF_ERROR(gate_.Pass(run.context));
      while (base::MonotonicNs() < end_ns) std::this_thread::yield();
      const std::lock_guard<std::mutex> lock(runs_mutex_);
      runs_.push_back(run.values);
      return base::Status();
    };
    settings_.rows_max = 2;
    settings_.run_ns_max = 0;
    // The share of a model among four threads is enough for the runs of these tests.
    max_thread_count_ = 4;
    Start(/*thread_count=*/1);
  }
  ~PiecesOverTheWireTest() override { gate_.Open(); }

  testing::Gate gate_;
  std::mutex runs_mutex_;
  std::vector<Values> runs_;  // guarded by runs_mutex_
};

TEST_F(PiecesOverTheWireTest, AnotherRequestIsAnsweredBetweenTwoPieces) {
  Values large;
  for (int64_t i = 1; i <= 2 * kPieceCount; ++i) large.push_back(i);
  RawHttp2 connection(server_->port());
  connection.Begin();
  connection.Send(PredictFrames(1, large));
  gate_.WaitForArrivals(1);
  // The thread is in the first piece.
  connection.Send(PredictFrames(3, {100}));
  gate_.Open();
  std::vector<uint32_t> ended;
  const auto answers = Read(&connection, 2, &ended);
  EXPECT_EQ(VersionOf(answers.at(1), large), 1);
  EXPECT_EQ(VersionOf(answers.at(3), {100}), 1);
  EXPECT_EQ(ended, (std::vector<uint32_t>{3, 1}));
  const std::lock_guard<std::mutex> lock(runs_mutex_);
  EXPECT_EQ(runs_.size(), kPieceCount + 1U);
  EXPECT_EQ(runs_.back(), (Values{2 * kPieceCount - 1, 2 * kPieceCount}));
}

}  // namespace
}  // namespace millpond::rpc
