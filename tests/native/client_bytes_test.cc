// All that a client can cause to exist counts in the server's budget while it exists: a connection,
// a stream, a call, a watcher, messages and answers. Once the client is gone, the budget is as
// before. tests/unit/test_http_client_bytes.py has what it holds over HTTP.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/clock.h"
#include "native/rpc/connection.h"
#include "native/rpc/server.h"
#include "native/servable/serving_map.h"
#include "tests/native/group_count.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_http2.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/wire_message.h"

namespace millpond::rpc {
namespace {

using testing::BigEndian;
using testing::FrameBytes;
using testing::GrpcHeaders;
using testing::GrpcMessage;
using testing::LiteralHeader;
using testing::RawHttp2;
using testing::WireMessage;

constexpr char kPredictPath[] = "/tensorflow.serving.PredictionService/Predict";
constexpr char kWatchPath[] = "/grpc.health.v1.Health/Watch";
constexpr char kCheckPath[] = "/grpc.health.v1.Health/Check";
constexpr char kRarePath[] = "/tensorflow.serving.ModelService/GetModelStatus";
constexpr char kReflectionPath[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

constexpr int64_t kKib = 1 << 10;
constexpr int64_t kMib = 1 << 20;
constexpr size_t kFileBytes = 20'000;  // of a reply of reflection
constexpr int64_t kPatienceNs = 20'000'000'000;

// A client's side of one connection, with streams that it numbers itself.
class Client {
 public:
  explicit Client(int port) : http2_(port) {}

  // With a window of 0, the server may send no part of an answer.
  void Begin(bool has_window) {
    const std::string no_window = std::string("\0\4", 2) + BigEndian(0);
    http2_.Send(testing::kPreface +
                FrameBytes(testing::kSettingsFrame, 0, 0, has_window ? "" : no_window));
  }
  uint32_t Open(const std::string& path, const std::string& more = "") {
    stream_ += 2;
    http2_.SendFrame(testing::kHeadersFrame, testing::kEndHeaders, stream_,
                     GrpcHeaders(path, more));
    return stream_;
  }
  // In frames of the size that every server takes.
  void Say(uint32_t stream, const std::string& message, bool is_last) {
    constexpr size_t kFrameBytes = 16'384;
    const std::string bytes = GrpcMessage(message);
    for (size_t at = 0; at < bytes.size(); at += kFrameBytes) {
      const bool ends = is_last && at + kFrameBytes >= bytes.size();
      http2_.SendFrame(testing::kDataFrame, ends ? testing::kEndStream : 0, stream,
                       bytes.substr(at, kFrameBytes));
    }
  }
  uint32_t Call(const std::string& path, const std::string& message, const std::string& more = "") {
    const uint32_t stream = Open(path, more);
    Say(stream, message, true);
    return stream;
  }
  void Reset(uint32_t stream) {
    http2_.SendFrame(testing::kRstStreamFrame, 0, stream, BigEndian(8));
  }
  void AllowMore(uint32_t stream, uint32_t bytes) {
    http2_.SendFrame(testing::kWindowUpdateFrame, 0, stream, BigEndian(bytes));
  }
  RawHttp2& http2() { return http2_; }

 private:
  RawHttp2 http2_;
  uint32_t stream_ = UINT32_MAX;  // so that the first is 1
};

class ClientBytesTest : public ::testing::Test {
 protected:
  ClientBytesTest() : model_("m", 7) {
    EXPECT_TRUE(servable::PublishHighest(map_, model_.entry).ok());
    const auto table = std::make_shared<ReflectionTable>();
    table->files["a.proto"] = std::string(kFileBytes, 'f');
    options_.addresses = {"127.0.0.1:0"};
    options_.thread_count = testing::ThreadCount();
    options_.thread_group_count = testing::GroupCount();
    options_.rare_methods = {kRarePath};
    options_.reflection = table;
    options_.budget = budget_;
  }
  ~ClientBytesTest() override {
    if (server_ != nullptr) server_->Shutdown(0);
  }

  void Start() {
    server_ = std::make_unique<Server>(&map_, options_);
    ASSERT_TRUE(server_->Start().ok());
    server_->SetHealth("", true);
  }
  std::unique_ptr<Client> NewClient(bool has_window = true) {
    auto client = std::make_unique<Client>(server_->port());
    client->Begin(has_window);
    return client;
  }
  int64_t in_use_bytes() const { return budget_->in_use_bytes(); }

  // Waits for the state, and fails if it does not come.
  static void WaitFor(const std::function<bool()>& is_there, const std::string& what) {
    const int64_t end_ns = base::MonotonicNs() + kPatienceNs;
    // Looked at once more, it may be gone again: the server accepts a client that has left already.
    bool was_there = is_there();
    for (; !was_there && base::MonotonicNs() < end_ns; was_there = is_there()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(was_there) << what;
  }
  void WaitForCharge(int64_t bytes) const {
    WaitFor([&] { return in_use_bytes() >= bytes; },
            std::to_string(bytes) + " bytes charged, " + std::to_string(in_use_bytes()));
  }
  // Answers the rare calls meanwhile, which are the control plane's until then. A call may come
  // late: its bytes are charged before it waits.
  void ExpectAllBytesBack() const {
    WaitFor(
        [&] {
          while (auto call = server_->TakeRareCall(0)) EXPECT_TRUE(call->Reply("").ok());
          return in_use_bytes() == 0 && server_->connection_count() == 0;
        },
        "all bytes back; " + std::to_string(in_use_bytes()) + " were in use");
  }
  static std::string PredictRequest() {
    return testing::PredictMessage(testing::ModelSpecMessage("m", {}), {{"x", "a tensor"}});
  }
  static std::string WatchRequest(const std::string& name) {
    return WireMessage().Bytes(1, name).bytes();
  }
  static std::string FileRequest() { return WireMessage().Bytes(3, "a.proto").bytes(); }
  static std::string ManyHeaders(int count) {
    std::string headers;
    for (int i = 0; i < count; ++i) {
      headers += LiteralHeader("key-" + std::to_string(i), std::string(100, 'v'));
    }
    return headers;
  }

  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>(64 * kMib);
  testing::Scripted model_;
  servable::ServingMap map_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

// Something that a client can hold, and the least that it is charged for it beside its connection.
struct Hold {
  const char* name;
  bool has_window;
  int64_t charge_bytes;
  std::function<void(Client*)> take;
};

std::vector<Hold> Holds() {
  const auto watch = [](const std::string& name) { return WireMessage().Bytes(1, name).bytes(); };
  return {
      {"Connection", true, 0, [](Client*) {}},
      {"ArrivingHeaders", true, 10 * 150,
       [](Client* client) {
         std::string headers;
         for (int i = 0; i < 10; ++i) headers += LiteralHeader("k", std::string(100, 'v'));
         client->http2().SendFrame(testing::kHeadersFrame, 0, 1,
                                   GrpcHeaders(kPredictPath, headers));
       }},
      // Within the window that a client has before it has read the server's settings.
      {"ArrivingMessage", true, 50'000,
       [](Client* client) {
         const uint32_t stream = client->Open(kPredictPath);
         const std::string message = GrpcMessage(std::string(60'000, 'x'));
         for (size_t at = 0; at < 50'000; at += 10'000) {
           client->http2().SendFrame(testing::kDataFrame, 0, stream, message.substr(at, 10'000));
         }
       }},
      {"Watchers", true, 100 * 1'000,
       [watch](Client* client) {
         for (int i = 0; i < 100; ++i) client->Call(kWatchPath, watch(std::string(1'000, 'w')));
       }},
      {"UnreadAnswers", false, 50 * 1'000,
       [](Client* client) {
         for (int i = 0; i < 50; ++i) client->Call(kCheckPath, "");
       }},
      {"UnreadReflection", false, static_cast<int64_t>(10 * kFileBytes),
       [](Client* client) {
         for (int i = 0; i < 10; ++i) {
           client->Say(client->Open(kReflectionPath), WireMessage().Bytes(3, "a.proto").bytes(),
                       false);
         }
       }},
      {"RareCallThatWaits", true, 50'000,
       [](Client* client) { client->Call(kRarePath, std::string(50'000, 'x')); }},
  };
}

class HoldTest : public ClientBytesTest, public ::testing::WithParamInterface<Hold> {};

TEST_P(HoldTest, IsChargedAndComesBackWithTheClient) {
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(NewClient(GetParam().has_window));
    GetParam().take(clients.back().get());
  }
  const int64_t count = static_cast<int64_t>(clients.size());
  WaitForCharge(count * (Connection::kBeginBytes + GetParam().charge_bytes));
  clients.clear();
  ExpectAllBytesBack();
}

INSTANTIATE_TEST_SUITE_P(Each, HoldTest, ::testing::ValuesIn(Holds()),
                         [](const auto& hold) { return std::string(hold.param.name); });

TEST_F(ClientBytesTest, AWatcherGoesWithItsStream) {
  Start();
  const auto client = NewClient();
  WaitForCharge(1);
  client->http2().NextOf(testing::kSettingsFrame);
  const int64_t before_bytes = in_use_bytes();
  std::vector<uint32_t> streams;
  for (int i = 0; i < 200; ++i) {
    streams.push_back(client->Call(kWatchPath, WatchRequest(std::string(2'000, 'w'))));
  }
  WaitForCharge(before_bytes + 200 * 2'000);
  for (const uint32_t stream : streams) client->Reset(stream);
  WaitFor([&] { return in_use_bytes() <= before_bytes + 64 * kKib; }, "the watchers' bytes back");
}

TEST_F(ClientBytesTest, AServiceNameIsBounded) {
  Start();
  const auto client = NewClient();
  client->Call(kWatchPath, WatchRequest(std::string(5'000, 'w')));
  const std::string headers = client->http2().HeadersToTheEnd();
  EXPECT_NE(headers.find("grpc-status: 8"), std::string::npos) << headers;
}

TEST_F(ClientBytesTest, AnAnsweredCallKeepsNoHeaders) {
  Start();
  const auto client = NewClient(/*has_window=*/false);
  constexpr int kCount = 100;
  // Each has 14 KB of headers, as RFC 9113 counts them.
  for (int i = 0; i < kCount; ++i) client->Call(kCheckPath, "", ManyHeaders(100));
  WaitForCharge(kCount * 1'000);
  WaitFor([&] { return in_use_bytes() < kCount * 8 * kKib; }, "the headers' bytes back");
}

TEST_F(ClientBytesTest, AnsweredUnreadCallsAreBounded) {
  options_.limits.open_call_bytes_max = 64 * kKib;
  Start();
  const auto other = NewClient();
  const auto client = NewClient(/*has_window=*/false);
  WaitFor([&] { return server_->connection_count() == 2; }, "two connections");
  constexpr uint32_t kCount = 200;
  for (uint32_t i = 0; i < kCount; ++i) {
    client->Call(kPredictPath, PredictRequest());
    // The bound is on answered calls: those before this one are answered.
    client->http2().ReadFor(1);
  }
  const int64_t refused_count = server_->LimitCountsByName().at("arriving_bytes");
  EXPECT_GT(refused_count, kCount / 2);
  EXPECT_LT(in_use_bytes(), kMib);
  // Another client has its share.
  other->Call(kPredictPath, PredictRequest());
  EXPECT_NE(other->http2().HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

TEST_F(ClientBytesTest, AStreamIsReadNoFurtherThanItsReplies) {
  Start();
  const auto client = NewClient(/*has_window=*/false);
  constexpr int kCount = 60;
  const uint32_t stream = client->Open(kReflectionPath);
  for (int i = 0; i < kCount; ++i) client->Say(stream, FileRequest(), i + 1 == kCount);
  WaitForCharge(static_cast<int64_t>(kFileBytes));
  std::this_thread::yield();
  EXPECT_LT(in_use_bytes(), static_cast<int64_t>(4 * kFileBytes));
  // Once it reads, it gets all of them.
  client->AllowMore(0, 1U << 30U);
  client->AllowMore(stream, 1U << 30U);
  size_t bytes = 0;
  std::string headers;
  while (const auto frame = client->http2().Next()) {
    if (frame->type == testing::kDataFrame) bytes += frame->payload.size();
    if (frame->type == testing::kHeadersFrame) headers += client->http2().Decode(*frame);
    if (frame->type == testing::kHeadersFrame && (frame->flags & testing::kEndStream) != 0) break;
  }
  EXPECT_GE(bytes, kCount * kFileBytes);
  EXPECT_NE(headers.find("grpc-status: 0"), std::string::npos) << headers;
}

TEST_F(ClientBytesTest, AConnectionWithoutMemoryIsRefused) {
  ASSERT_TRUE(budget_->Take(budget_->limit_bytes()));
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  const int64_t fitting = base::ByteBudget::kReserveBytes / Connection::kBeginBytes;
  for (int64_t i = 0; i < 50; ++i) clients.push_back(NewClient());
  // The reserve keeps probes answered.
  clients.back()->Call(kCheckPath, "");
  EXPECT_NE(clients.back()->http2().HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
  EXPECT_GT(fitting, 50);
  budget_->Return(budget_->limit_bytes());
  clients.clear();
  ExpectAllBytesBack();
}

// Numbers from a seed, the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t Below(size_t end) { return engine_() % end; }

 private:
  std::mt19937_64 engine_;
};

// Any mix of clients that hold what they can, that read or do not, and leave in any order.
TEST_F(ClientBytesTest, AnySequenceOfClientsGivesAllBack) {
  Start();
  const std::vector<Hold> holds = Holds();
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    std::vector<std::unique_ptr<Client>> clients;
    for (size_t left = 1 + dice.Below(12); left > 0; --left) {
      switch (dice.Below(5)) {
        case 0:
          if (!clients.empty()) {
            clients.erase(clients.begin() + static_cast<ptrdiff_t>(dice.Below(clients.size())));
          }
          break;
        case 1:
          if (!clients.empty()) {
            clients[dice.Below(clients.size())]->Reset(
                static_cast<uint32_t>(1 + 2 * dice.Below(20)));
          }
          break;
        case 2:
          if (!clients.empty()) clients[dice.Below(clients.size())]->http2().ReadFor(1);
          break;
        default: {
          const Hold& hold = holds[dice.Below(holds.size())];
          clients.push_back(NewClient(hold.has_window && dice.Below(2) == 0));
          hold.take(clients.back().get());
        }
      }
      if (dice.Below(4) == 0) server_->SetHealth(std::string(1'000, 'w'), dice.Below(2) == 0);
    }
    if (dice.Below(2) == 0) WaitForCharge(clients.empty() ? 0 : 1);
    clients.clear();
    ExpectAllBytesBack();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace millpond::rpc
