// The calls of gRPC on the streams of a connection: no socket, no HTTP/2, and no lock. The test
// does for them what a connection does.

#include "native/rpc/grpc_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/rpc/stream_table.h"
#include "native/servable/admission.h"
#include "tests/native/fake_session.h"
#include "tests/native/raw_http2.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::GrpcMessage;

constexpr char kModelPath[] = "/test/Model";
constexpr char kCheckPath[] = "/test/Check";
constexpr char kManyPath[] = "/test/Many";
constexpr char kHeaders[] =
    ":status=200 content-type=application/grpc grpc-accept-encoding=identity, deflate, gzip body\n";

// Keeps its calls for the test to answer.
struct Keeper {
  void Keep(Call* call) {
    std::string text;
    call->request().AppendRest(&text);
    messages.push_back(text);
    calls.push_back(call->shared_from_this());
  }

  std::vector<std::string> messages;
  std::vector<std::shared_ptr<Call>> calls;
};

struct KeeperOfRequests final : testing::WholeAnswers, Keeper {
  void Answer(RunnableCall* call) override { Keep(call); }
};

struct KeeperOfCalls final : CallHandler, Keeper {
  void Handle(Call* call) override { Keep(call); }
};

struct KeeperOfMessages final : StreamingHandler, Keeper {
  void HandleMessage(Call* call) override { Keep(call); }
  void HandleEnd(Call* call) override { call->Finish({}); }
};

// The streams of a connection, which never writes: the test takes the bodies from the session.
class Streams final : public CallCarrier {
 public:
  Streams(ServerShared* shared, testing::FakeSession* session)
      : shared_(*shared), context_{shared, this, 1} {
    context_.session = session;
    context_.space = &space_;
  }

  const std::string& peer() const override { return peer_; }
  const std::string& local_address() const override { return peer_; }
  std::vector<std::string> ClientNames() override { return {}; }
  bool TakeMessage(int32_t number, base::ChargedText* message, bool* is_end) override {
    Stream* const stream = table_.FindUnanswered(number);
    return stream != nullptr && stream->TakeMessage(message, is_end);
  }
  void Answer(int32_t number, CallEnd end) override {
    if (Stream* const stream = table_.FindUnanswered(number)) stream->Answer(std::move(end));
    table_.CountUnread();
  }
  bool Send(int32_t number, std::shared_ptr<OutMessage> message, size_t waiting_max) override {
    Stream* const stream = table_.FindUnanswered(number);
    return stream == nullptr || stream->Send(std::move(message), waiting_max);
  }
  void WriteAnswers() override {}

  // The client's headers.
  void Begin(int32_t number, const std::string& path, const std::string& method = "POST",
             const std::string& type = "application/grpc") {
    table_.OnBegin(number);
    table_.OnHeader(number, ":path", path);
    table_.OnHeader(number, ":method", method);
    table_.OnHeader(number, "content-type", type);
    table_.OnHeadersEnd(number);
  }
  void Send(int32_t number, const std::string& bytes) {
    size_t room = 0;
    char* const to = space_.Reserve(&room);
    std::memcpy(to, bytes.data(), bytes.size());
    table_.OnData(number, {to, bytes.size()});
    space_.Use(bytes.size());
  }
  // Handles what has arrived, and what comes of it, as Proceed and the threads do.
  void HandleDue() {
    while (!context_.due.empty()) {
      for (auto& call : std::exchange(context_.due, {})) {
        if (call->Arrive()) CallBeingAnswered(call).Prepare();
      }
      (void)table_.TakeClosed();
    }
  }
  StreamTable& table() { return table_; }
  StreamContext& context() { return context_; }

 private:
  const std::string peer_;
  const GrpcProtocol protocol_;
  ServerShared& shared_;
  ReceiveSpace space_;
  StreamContext context_;
  ConnectionLife life_{shared_.limits, 0};
  StreamTable table_{protocol_, &context_, &life_};
};

class GrpcStreamTest : public ::testing::Test {
 protected:
  GrpcStreamTest() {
    shared_.calls.budget = budget_;
    shared_.calls.admission = admission_;
    shared_.methods[kModelPath] = {kModelPath, &model_};
    shared_.methods[kCheckPath] = {kCheckPath, &check_};
    shared_.methods[kManyPath] = {kManyPath, &many_};
  }
  // Calls own their connection, and the connection its streams until it is closed.
  ~GrpcStreamTest() override {
    streams_->table().CloseAll();
    (void)streams_->table().TakeClosed();
    for (Keeper* const keeper : std::vector<Keeper*>{&model_, &check_, &many_}) {
      keeper->calls.clear();
    }
  }
  // Sends a request and handles it.
  void Ask(int32_t number, const std::string& path, const std::string& text) {
    streams_->Begin(number, path);
    streams_->Send(number, GrpcMessage(text));
    streams_->table().OnRequestEnd(number);
    streams_->HandleDue();
  }
  std::string BodyOf(int32_t number) {
    std::string body;
    EXPECT_TRUE(session_.TakeBody(number, SIZE_MAX, &body));
    return body;
  }
  void Close(int32_t number) {
    streams_->table().OnStreamClosed(number);
    (void)streams_->table().TakeClosed();
  }
  const std::atomic<int64_t>& open_bytes() const { return shared_.call_counts.open_bytes; }

  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>();
  const std::shared_ptr<servable::Admission> admission_ = std::make_shared<servable::Admission>();
  KeeperOfRequests model_;
  KeeperOfCalls check_;
  KeeperOfMessages many_;
  ServerShared shared_;
  testing::FakeSession session_;
  std::shared_ptr<Streams> streams_ = std::make_shared<Streams>(&shared_, &session_);
};

TEST_F(GrpcStreamTest, CallIsAnsweredWithHeadersBodyAndTrailers) {
  Ask(1, kModelPath, "question");
  ASSERT_EQ(model_.messages, std::vector<std::string>{"question"});
  EXPECT_EQ(admission_->in_flight_count(), 1);
  model_.calls[0]->Reply("answer");
  EXPECT_TRUE(model_.calls[0]->is_over());
  EXPECT_EQ(admission_->in_flight_count(), 0);
  EXPECT_EQ(session_.Take(), std::string("1 ") + kHeaders);
  EXPECT_EQ(BodyOf(1), GrpcMessage("answer"));
  EXPECT_EQ(session_.Take(), "1 grpc-status=0 \n");
}

TEST_F(GrpcStreamTest, SecondAnswerChangesNothing) {
  Ask(1, kModelPath, "x");
  model_.calls[0]->Fail(base::NotFound("no"));
  model_.calls[0]->Reply("late");
  Close(1);
  model_.calls[0]->Reply("later");
  EXPECT_EQ(session_.Take(),
            "1 :status=200 content-type=application/grpc grpc-status=5 grpc-message=no \n");
}

TEST_F(GrpcStreamTest, WhatIsNoCallIsRefused) {
  streams_->Begin(1, kModelPath, "GET");
  streams_->Begin(3, kModelPath, "POST", "text/html");
  streams_->Begin(5, "/no/method");
  EXPECT_EQ(session_.Take(),
            "1 :status=405 \n3 :status=415 \n"
            "5 :status=200 content-type=application/grpc grpc-status=12 "
            "grpc-message=this server has no method /no/method \n");
  for (const int32_t number : {1, 3, 5})
    EXPECT_EQ(streams_->table().FindUnanswered(number), nullptr);
}

TEST_F(GrpcStreamTest, TooManyHeadersResetTheStream) {
  shared_.limits.header_list_bytes_max = 1'000;
  streams_->table().OnBegin(1);
  streams_->table().OnHeader(1, "key", std::string(1'000, 'x'));
  EXPECT_EQ(session_.Take(), "1 reset 1\n");
  EXPECT_EQ(shared_.limit_counts.ByName()["header_bytes"], 1);
}

TEST_F(GrpcStreamTest, MessageThatStopsEndsItsCall) {
  shared_.limits.pause_ns = 60 * WireLimits::kSecondNs;
  streams_->Begin(1, kModelPath);
  streams_->Send(1, GrpcMessage("half").substr(0, 6));
  streams_->context().now_ns = shared_.limits.pause_ns + 1;
  streams_->table().EndPaused();
  EXPECT_EQ(session_.Take(), "");
  streams_->context().now_ns += 1;
  streams_->table().EndPaused();
  EXPECT_NE(session_.Take().find("grpc-status=4"), std::string::npos);
}

// A call counts as open until its request has arrived, and again while its answer is not read.
TEST_F(GrpcStreamTest, UnreadAnswerCountsAsOpen) {
  streams_->Begin(1, kModelPath);
  const int64_t bytes = GrpcProtocol().stream_bytes();
  EXPECT_EQ(open_bytes(), bytes);
  streams_->Send(1, GrpcMessage("x"));
  streams_->table().OnRequestEnd(1);
  EXPECT_EQ(open_bytes(), 0);
  streams_->HandleDue();
  model_.calls[0]->Reply("answer");
  EXPECT_EQ(open_bytes(), bytes);
  Close(1);
  EXPECT_EQ(open_bytes(), 0);  // while the handler has the call still
  EXPECT_EQ(shared_.call_counts.live_count, 1);
}

// Each message may cause an answer that is much longer.
TEST_F(GrpcStreamTest, ClientThatReadsNoAnswerIsNotReadEither) {
  streams_->Begin(1, kManyPath);
  streams_->Send(1, GrpcMessage("one"));
  streams_->HandleDue();
  many_.calls[0]->Send("answer");
  streams_->Send(1, GrpcMessage("two"));
  streams_->table().OnRequestEnd(1);
  streams_->HandleDue();
  EXPECT_EQ(many_.messages, std::vector<std::string>{"one"});
  std::string body;
  EXPECT_FALSE(session_.TakeBody(1, SIZE_MAX, &body));
  streams_->table().OnDataSent(1);
  streams_->HandleDue();
  EXPECT_EQ(many_.messages, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(BodyOf(1), "");
  EXPECT_EQ(session_.Take(), std::string("1 ") + kHeaders + "1 resume\n1 grpc-status=0 \n");
}

// --- Random calls, in any order ---

// Clients that begin calls, send parts, end, read and go, and handlers that answer: each at any
// time.
class RandomCalls {
 public:
  RandomCalls(unsigned seed, Streams* streams, std::vector<Keeper*> keepers)
      : random_(seed), streams_(*streams), keepers_(std::move(keepers)) {}

  void Happen() {
    streams_.context().now_ns += 1;
    if (unsent_.empty() || Below(6) == 0) return Begin();
    const auto stream = std::next(unsent_.begin(), Below(unsent_.size()));
    switch (Below(6)) {
      case 0:
      case 1:
        return SendPart(stream->first, &stream->second);
      case 2:
        streams_.table().OnRequestEnd(stream->first);
        return stream->second.clear();
      case 3:
        return streams_.HandleDue();
      case 4:
        return Answer(keepers_[Below(keepers_.size())]);
      default:
        streams_.table().OnStreamClosed(stream->first);
        unsent_.erase(stream);
        if (Below(2) == 0) (void)streams_.table().TakeClosed();
    }
  }
  // All clients go, and then all handlers answer.
  void End() {
    for (const auto& item : unsent_) streams_.table().OnStreamClosed(item.first);
    streams_.HandleDue();
    for (Keeper* const keeper : keepers_) {
      for (const auto& call : keeper->calls) {
        EXPECT_TRUE(call->is_over());
        call->Reply("nobody waits");
      }
      keeper->calls.clear();
    }
    (void)streams_.table().TakeClosed();
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }

  void Begin() {
    const char* const paths[] = {kModelPath, kCheckPath, kManyPath, "/no/method"};
    streams_.Begin(next_, paths[Below(4)], Below(9) == 0 ? "GET" : "POST");
    unsent_[next_] = GrpcMessage(std::string(Below(30'000), 'x'));
    next_ += 2;
  }
  void SendPart(int32_t number, std::string* rest) {
    const size_t part = std::min(rest->size(), Below(16'000));
    if (part > 0) streams_.Send(number, rest->substr(0, part));
    rest->erase(0, part);
  }
  void Answer(Keeper* keeper) {
    if (keeper->calls.empty()) return;
    const std::shared_ptr<Call> call = keeper->calls.back();
    keeper->calls.pop_back();
    if (Below(2) == 0) call->Send("part");
    call->Reply("answer");
  }

  std::mt19937 random_;
  Streams& streams_;
  const std::vector<Keeper*> keepers_;
  std::map<int32_t, std::string> unsent_;  // of the streams that are there
  int32_t next_ = 1;
};

// No stream is answered twice or after its end. Once all are gone, so is all that they count for.
TEST_F(GrpcStreamTest, NothingIsLeftOfRandomCalls) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomCalls calls(seed, streams_.get(), {&model_, &check_, &many_});
    for (int i = 0; i < 300; ++i) calls.Happen();
    std::map<int32_t, int> answer_counts;
    std::istringstream lines(session_.Take());
    for (std::string line; std::getline(lines, line);) {
      if (line.find(":status") != std::string::npos) ++answer_counts[std::stoi(line)];
    }
    ASSERT_FALSE(answer_counts.empty());
    for (const auto& [number, count] : answer_counts) ASSERT_EQ(count, 1) << number;
    calls.End();
    ASSERT_EQ(session_.Take().find(":status"), std::string::npos) << "answered after its end";
    ASSERT_EQ(shared_.call_counts.live_count + shared_.call_counts.arrived_count, 0);
    ASSERT_EQ(open_bytes() + budget_->in_use_bytes(), 0);
    ASSERT_EQ(admission_->in_flight_count(), 0);
  }
}

}  // namespace
}  // namespace millpond::rpc
