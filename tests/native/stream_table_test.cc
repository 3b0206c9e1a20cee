// The streams of a connection, whatever they mean: who gets an event, who is refused, and what they
// count for. No socket, no protocol.

#include "native/rpc/stream_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "native/base/byte_budget.h"
#include "tests/native/fake_session.h"

namespace millpond::rpc {
namespace {

constexpr int64_t kStreamBytes = 1'000;

// Writes down what happens to the streams of a table.
struct Log {
  std::string text;
  std::set<int32_t> paused;  // EndIfPaused ends these
};

class FakeStream final : public Stream {
 public:
  FakeStream(Log* log, int32_t number, base::ByteBudget::Share charge, CallAccount account)
      : log_(*log),
        number_(std::to_string(number)),
        charge_(std::move(charge)),
        account_(std::move(account)) {}

  void OnHeader(std::string_view name, std::string_view) override { Add(std::string(name)); }
  void OnHeadersEnd() override { Add("headers end"); }
  void OnData(std::string_view data) override { Add(std::string(data)); }
  void OnRequestEnd() override { account_.MarkArrived(); }
  bool TakeMessage(base::ChargedText*, bool*) override { return false; }
  bool Send(std::shared_ptr<OutMessage>, size_t) override { return true; }
  void Answer(CallEnd) override { is_answered_ = true; }
  void OnDataSent() override { Add("sent"); }
  void Close() override { Add("close"); }
  void CountUnread() override { Add("unread"); }
  bool IsReceiving(int64_t since_ns) const override { return since_ns == 7; }
  bool EndIfPaused(int64_t) override { return log_.paused.count(std::stoi(number_)) > 0; }

 private:
  void Add(const std::string& what) { log_.text += number_ + " " + what + "\n"; }

  Log& log_;
  const std::string number_;
  const base::ByteBudget::Share charge_;
  CallAccount account_;
};

class FakeProtocol final : public Protocol {
 public:
  explicit FakeProtocol(Log* log) : log_(log) {}
  std::string_view alpn() const override { return ""; }
  int64_t stream_bytes() const override { return kStreamBytes; }
  std::unique_ptr<Session> MakeSession(const ServerShared&, StreamEvents*,
                                       SessionEvents*) const override {
    return std::make_unique<testing::FakeSession>();
  }
  std::unique_ptr<Stream> MakeStream(StreamContext*, int32_t number, base::ByteBudget::Share charge,
                                     CallAccount account) const override {
    return std::make_unique<FakeStream>(log_, number, std::move(charge), std::move(account));
  }

 private:
  Log* const log_;
};

class StreamTableTest : public ::testing::Test {
 protected:
  StreamTableTest() {
    shared_.calls.budget = budget_;
    shared_.limits.open_call_bytes_max = 10 * kStreamBytes;
    context_.session = &session_;
  }
  int64_t open_count() const { return shared_.call_counts.open_bytes / kStreamBytes; }

  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>();
  ServerShared shared_;
  Log log_;
  FakeProtocol protocol_{&log_};
  testing::FakeSession session_;
  StreamContext context_{&shared_, nullptr, 0};
  ConnectionLife life_{shared_.limits, 0};
  StreamTable table_{protocol_, &context_, &life_};
};

TEST_F(StreamTableTest, EventsComeToTheirStreamUntilItIsAnswered) {
  for (const int32_t number : {1, 3}) table_.OnBegin(number);
  table_.OnHeader(3, "name", "value");
  table_.OnHeadersEnd(1);
  table_.OnData(3, "data");
  table_.OnData(5, "of no stream");
  table_.FindUnanswered(3)->Answer({});
  EXPECT_EQ(table_.FindUnanswered(3), nullptr);
  table_.OnHeader(3, "late", "");
  table_.OnHeadersEnd(3);
  table_.OnData(3, "late");
  table_.OnDataSent(3);
  EXPECT_EQ(log_.text, "3 name\n1 headers end\n3 data\n3 sent\n");
}

TEST_F(StreamTableTest, StreamWithoutRoomIsRefused) {
  for (int32_t number = 1; number <= 23; number += 2) table_.OnBegin(number);
  EXPECT_EQ(session_.Take(), "21 reset 0\n23 reset 0\n");
  EXPECT_EQ(shared_.limit_counts.ByName()["arriving_bytes"], 2);
  EXPECT_EQ(open_count(), 10);
  table_.OnStreamClosed(1);
  (void)table_.TakeClosed();
  table_.OnBegin(25);
  EXPECT_NE(table_.FindUnanswered(25), nullptr);
}

// A flood on one connection refuses no stream of another.
TEST_F(StreamTableTest, EachConnectionHasItsShare) {
  shared_.connection_count = 2;
  StreamTable other(protocol_, &context_, &life_);
  for (int32_t number = 1; number < 40; number += 2) table_.OnBegin(number);
  EXPECT_EQ(open_count(), 10);
  for (int32_t number = 1; number < 40; number += 2) other.OnBegin(number);
  EXPECT_EQ(open_count(), 15);
}

TEST_F(StreamTableTest, StreamWithoutMemoryIsRefused) {
  shared_.calls.budget = std::make_shared<base::ByteBudget>(0);
  base::ByteBudget::Share reserve(shared_.calls.budget.get(), base::ByteBudget::Use::kCall);
  ASSERT_TRUE(reserve.Resize(base::ByteBudget::kReserveBytes));
  table_.OnBegin(1);
  EXPECT_EQ(session_.Take(), "1 reset 0\n");
  EXPECT_EQ(shared_.call_counts.live_count, 0);
}

TEST_F(StreamTableTest, OnlyAnsweredStreamsThatAreLeftCountAsUnread) {
  for (const int32_t number : {1, 3, 5}) table_.OnBegin(number);
  context_.answered = {1, 3};
  table_.OnStreamClosed(1);
  table_.CountUnread();
  table_.CountUnread();
  EXPECT_EQ(log_.text, "1 close\n3 unread\n");
}

TEST_F(StreamTableTest, AllThatAreClosedAreLetGoTogether) {
  for (const int32_t number : {1, 3, 5}) table_.OnBegin(number);
  table_.OnStreamClosed(3);
  table_.CloseAll();
  EXPECT_EQ(table_.FindUnanswered(1), nullptr);
  EXPECT_EQ(shared_.call_counts.live_count, 3);
  EXPECT_EQ(table_.TakeClosed().size(), 3U);
  EXPECT_EQ(shared_.call_counts.live_count, 0);
}

TEST_F(StreamTableTest, PausedStreamsEndUnlessThereIsNoLimit) {
  for (const int32_t number : {1, 3, 5}) table_.OnBegin(number);
  log_.paused = {3, 5};
  table_.EndPaused();
  EXPECT_EQ(shared_.limit_counts.ByName()["pause"], 2);
  shared_.limits.pause_ns = 0;
  table_.EndPaused();
  EXPECT_EQ(shared_.limit_counts.ByName()["pause"], 2);
  EXPECT_TRUE(table_.IsReceiving(7));
  EXPECT_FALSE(table_.IsReceiving(8));
}

// Streams begin, are answered and close in any order. The counts, the budget and the connection's
// life always agree with the streams that are there, or that have closed and were not let go yet.
TEST_F(StreamTableTest, CountsAgreeOverRandomSequences) {
  shared_.limits.open_call_bytes_max = 8 * kStreamBytes;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::map<int32_t, bool> is_answered;  // of the streams that are there
    int64_t closed_count = 0;
    int32_t next = 1;
    const auto any = [&] {
      return next == 1 ? 1 : 1 + 2 * static_cast<int32_t>(random() % (next / 2));
    };
    for (int i = 0; i < 200; ++i) {
      context_.now_ns += 1;
      const int32_t number = any();
      const bool is_there = is_answered.count(number) > 0;
      const auto live_count = static_cast<int64_t>(is_answered.size()) + closed_count;
      switch (random() % 6) {
        case 0:
        case 1:
          table_.OnBegin(next);
          if (live_count < 8) is_answered[next] = false;
          next += 2;
          break;
        case 2:
          table_.OnRequestEnd(number);
          break;
        case 3:
          if (is_there && !is_answered[number]) {
            table_.FindUnanswered(number)->Answer({});
            is_answered[number] = true;
          }
          break;
        case 4:
          table_.OnStreamClosed(number);
          closed_count += is_there ? 1 : 0;
          is_answered.erase(number);
          break;
        default:
          closed_count -= static_cast<int64_t>(table_.TakeClosed().size());
          ASSERT_EQ(closed_count, 0);
      }
      const auto count = static_cast<int64_t>(is_answered.size()) + closed_count;
      ASSERT_EQ(shared_.call_counts.live_count, count);
      ASSERT_EQ(open_count(), count);
      ASSERT_EQ(budget_->in_use_bytes(), count * kStreamBytes);
      ASSERT_EQ(life_.times().idle_since_ns.has_value(), is_answered.empty());
      for (const auto& [there, answered] : is_answered) {
        ASSERT_EQ(table_.FindUnanswered(there) == nullptr, answered);
      }
    }
    for (const auto& [there, answered] : is_answered) table_.OnStreamClosed(there);
    (void)table_.TakeClosed();
    ASSERT_EQ(shared_.call_counts.live_count + shared_.call_counts.arrived_count, 0);
    ASSERT_EQ(shared_.call_counts.open_bytes + budget_->in_use_bytes(), 0);
  }
}

}  // namespace
}  // namespace millpond::rpc
