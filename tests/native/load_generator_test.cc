#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/load_generator/issue_loop.h"
#include "native/load_generator/null_server.h"
#include "native/load_generator/outcome.h"
#include "native/load_generator/plan.h"
#include "native/load_generator/reply_table.h"
#include "tests/native/temporary_directory.h"

namespace millpond::load_generator {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int32_t kOk = 0;
constexpr int32_t kUnavailable = 14;

// `request_count` requests, one every millisecond, of two payloads in turn.
Plan MakePlan(int64_t request_count) {
  Plan plan;
  for (int64_t i = 0; i < request_count; ++i) {
    plan.offsets_ns.push_back(i * 1'000'000);
    plan.payload_of.push_back(static_cast<int32_t>(i % 2));
  }
  plan.payloads = {"one payload", std::string(100'000, 'x')};
  plan.channel_count = 2;
  plan.deadline_ns = 10 * kSecondNs;
  plan.kept_reply_bytes_max = 1'000'000;
  return plan;
}

std::string Target(int port) { return "127.0.0.1:" + std::to_string(port); }

class IssueLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const base::StatusOr<int> port = server_.Start();
    ASSERT_TRUE(port.ok()) << port.status().message();
    target_ = Target(port.value());
  }

  NullServer server_{"the reply"};
  std::string target_;
};

TEST_F(IssueLoopTest, EveryRequestIsIssuedWhenDueOrLaterAndAnswered) {
  const Plan plan = MakePlan(200);
  IssueLoop loop(plan, target_);
  ASSERT_TRUE(loop.Connect(10 * kSecondNs).ok());
  const int64_t start_ns = base::MonotonicNs();
  const Outcome outcome = loop.Run(start_ns);
  EXPECT_EQ(outcome.issued_count, 200);
  for (int i = 0; i < 200; ++i) {
    EXPECT_GE(outcome.issued_ns[i], start_ns + plan.offsets_ns[i]);
    EXPECT_GE(outcome.completed_ns[i], start_ns + plan.offsets_ns[i]);
    EXPECT_EQ(outcome.codes[i], kOk);
    const ReplyTable::Reply& reply = outcome.replies.replies()[outcome.reply_of[i]];
    EXPECT_EQ(reply.payload, i % 2);
    EXPECT_EQ(reply.bytes, "the reply");
  }
  EXPECT_EQ(outcome.replies.replies().size(), 2);
}

TEST_F(IssueLoopTest, ClosedLoopHasNoMoreUnderWayThanItsPlanAllows) {
  Plan plan = MakePlan(200);
  std::fill(plan.offsets_ns.begin(), plan.offsets_ns.end(), 0);
  plan.in_flight_max = 3;
  IssueLoop loop(plan, target_);
  ASSERT_TRUE(loop.Connect(10 * kSecondNs).ok());
  const Outcome outcome = loop.Run(base::MonotonicNs());
  EXPECT_EQ(outcome.issued_count, 200);
  std::vector<int64_t> completed_ns(outcome.completed_ns.begin(), outcome.completed_ns.end());
  std::sort(completed_ns.begin(), completed_ns.end());
  // The n-th request is issued once all but two of those before it are answered.
  for (int i = 3; i < 200; ++i) EXPECT_GE(outcome.issued_ns[i], completed_ns[i - 3]) << i;
}

TEST_F(IssueLoopTest, RunStoppedBeforehandIssuesNothing) {
  const Plan plan = MakePlan(3);
  IssueLoop loop(plan, target_);
  ASSERT_TRUE(loop.Connect(10 * kSecondNs).ok());
  loop.Stop();
  EXPECT_EQ(loop.Run(base::MonotonicNs()).issued_count, 0);
}

TEST_F(IssueLoopTest, StoppedRunEndsBeforeItsPlanWithItsAnswers) {
  Plan plan = MakePlan(3);
  // The request is due in an hour: only a stop ends this run.
  plan.offsets_ns[2] = 3600 * kSecondNs;
  IssueLoop loop(plan, target_);
  ASSERT_TRUE(loop.Connect(10 * kSecondNs).ok());
  std::thread stopper([&] { loop.Stop(); });
  const Outcome outcome = loop.Run(base::MonotonicNs());
  stopper.join();
  EXPECT_LE(outcome.issued_count, 2);
  for (int i = 0; i < outcome.issued_count; ++i) EXPECT_EQ(outcome.codes[i], kOk);
}

TEST(IssueLoop, ConnectToAPortWithoutAServerIsUnavailable) {
  const Plan plan = MakePlan(1);
  IssueLoop loop(plan, "127.0.0.1:1");
  const base::Status status = loop.Connect(100'000'000);
  EXPECT_EQ(status.code(), base::Code::kUnavailable);
}

TEST(IssueLoop, RequestsToAServerThatIsGoneFailWithItsMessage) {
  const Plan plan = MakePlan(20);
  auto server = std::make_unique<NullServer>("the reply");
  const base::StatusOr<int> port = server->Start();
  ASSERT_TRUE(port.ok());
  IssueLoop loop(plan, Target(port.value()));
  ASSERT_TRUE(loop.Connect(10 * kSecondNs).ok());
  server.reset();
  const Outcome outcome = loop.Run(base::MonotonicNs());
  EXPECT_EQ(outcome.issued_count, 20);
  EXPECT_EQ(std::set<int32_t>(outcome.codes.begin(), outcome.codes.end()),
            std::set<int32_t>{kUnavailable});
  EXPECT_FALSE(outcome.replies.replies()[outcome.reply_of[0]].bytes.empty());
}

TEST(ReplyTable, EqualRepliesToOnePayloadAreKeptOnce) {
  ReplyTable table(2, 1'000);
  EXPECT_EQ(table.Find(0, kOk, "a"), 0);
  EXPECT_EQ(table.Find(0, kOk, "b"), 1);
  EXPECT_EQ(table.Find(0, kOk, "a"), 0);
  EXPECT_EQ(table.Find(1, kOk, "a"), 2);
  EXPECT_EQ(table.Find(0, kUnavailable, "a"), 3);
  EXPECT_EQ(table.replies()[3].code, kUnavailable);
}

TEST(ReplyTable, ReplyWithoutRoomIsNotKeptAndTheOthersStay) {
  ReplyTable table(1, 200);
  EXPECT_EQ(table.Find(0, kOk, std::string(100, 'a')), 0);
  EXPECT_EQ(table.Find(0, kOk, std::string(100, 'b')), ReplyTable::kNotKept);
  EXPECT_EQ(table.Find(0, kOk, std::string(100, 'a')), 0);
  EXPECT_EQ(table.replies().size(), 1);
}

// --- The plan's file, as loadtest/plan/plan.py writes it ---

template <typename T>
void Append(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string PlanBytes(int32_t second_payload = 0, int64_t second_offset_ns = 7) {
  std::string bytes = "MPPLAN02";
  for (const int64_t value : {2, 1, 3, 4, 5, 6, 7}) Append<int64_t>(&bytes, value);
  Append<int64_t>(&bytes, 1);
  Append<int64_t>(&bytes, second_offset_ns);
  Append<int32_t>(&bytes, 0);
  Append<int32_t>(&bytes, second_payload);
  Append<int64_t>(&bytes, 3);
  return bytes + "abc";
}

base::StatusOr<Plan> ReadBack(const std::string& bytes) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.File("plan");
  std::ofstream(path, std::ios::binary) << bytes;
  return ReadPlan(path);
}

TEST(ReadPlan, SoundFileHasAllItsValues) {
  const base::StatusOr<Plan> plan = ReadBack(PlanBytes());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().offsets_ns, (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(plan.value().payload_of, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(plan.value().payloads, std::vector<std::string>{"abc"});
  EXPECT_EQ(plan.value().channel_count, 3);
  EXPECT_EQ(plan.value().deadline_ns, 4);
  EXPECT_EQ(plan.value().realtime_priority, 5);
  EXPECT_EQ(plan.value().kept_reply_bytes_max, 6);
  EXPECT_EQ(plan.value().in_flight_max, 7);
}

TEST(ReadPlan, FileCutShortAnywhereIsRefused) {
  const std::string bytes = PlanBytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ReadBack(bytes.substr(0, size)).status().code(), base::Code::kDataLoss) << size;
  }
  EXPECT_EQ(ReadBack(bytes + "d").status().code(), base::Code::kDataLoss);
}

TEST(ReadPlan, ImpossiblePlanFilesAreRefused) {
  EXPECT_EQ(ReadBack(PlanBytes(1)).status().code(), base::Code::kDataLoss);
  EXPECT_EQ(ReadBack(PlanBytes(-1)).status().code(), base::Code::kDataLoss);
  EXPECT_EQ(ReadBack(PlanBytes(0, 0)).status().code(), base::Code::kDataLoss);
  std::string huge = PlanBytes();
  const int64_t count = int64_t{1} << 60;
  std::memcpy(huge.data() + 8, &count, sizeof count);
  EXPECT_EQ(ReadBack(huge).status().code(), base::Code::kDataLoss);
}

TEST(ReadPlan, MissingFileIsNotFound) {
  EXPECT_EQ(ReadPlan("/no/such/plan").status().code(), base::Code::kNotFound);
}

TEST(WriteOutcome, UnwritablePathIsAnErrorWithItsName) {
  const Plan plan = MakePlan(1);
  const base::Status status = WriteOutcome(Outcome(plan), "/no/such/directory/outcome");
  EXPECT_EQ(status.code(), base::Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("/no/such/directory/outcome"), std::string::npos);
}

}  // namespace
}  // namespace millpond::load_generator
