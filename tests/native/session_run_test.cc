#include "native/inference/session_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/native/predict_messages.h"
#include "tests/native/session_servable.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::InputMessage;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::SessionServable;
using testing::WireMessage;
using Names = std::vector<std::string>;

// Far in the future of the real clock: a reply written after its deadline would be cut off.
constexpr int64_t kNowNs = INT64_MAX / 2;

class SessionRunTest : public ::testing::Test {
 protected:
  base::StatusOr<std::string> Ask(const WireMessage& message, const tensor::RunContext& run = {}) {
    const SegmentedBytes bytes(message.bytes(), {message.bytes().size() / 2});
    SessionRunRequest request;
    MILLPOND_RETURN_IF_ERROR(DecodeSessionRunRequest(bytes.reader(), &request));
    base::ReplyBytes reply;
    MILLPOND_RETURN_IF_ERROR(AnswerSessionRun(servable_, request, run, kNowNs, &reply));
    return std::string(reply.view());
  }
  void ExpectRefused(const WireMessage& message, Code code, const std::string& in_message) {
    const auto refused = Ask(message);
    EXPECT_EQ(refused.status().code(), code);
    EXPECT_NE(refused.status().message().find(in_message), std::string::npos)
        << refused.status().message();
  }
  static WireMessage Fetching(const std::string& name) {
    return WireMessage()
        .Message(1, ModelSpecMessage("m"))
        .Message(2, InputMessage("x", "tensor"))
        .Bytes(3, name);
  }

  SessionServable servable_;
};

TEST_F(SessionRunTest, FeedsFetchesAndRunsByName) {
  const WireMessage request = Fetching("one:0").Bytes(3, "two:0").Bytes(4, "node");
  EXPECT_EQ(Ask(request).value(), WireMessage()
                                      .Message(1, InputMessage("one:0", "tensor"))
                                      .Message(1, InputMessage("two:0", "tensor"))
                                      .Message(3, ModelSpecMessage("m", 7))
                                      .bytes());
  EXPECT_EQ(servable_.asked.feeds, Names{"x"});
  EXPECT_EQ(servable_.asked.fetches, (Names{"one:0", "two:0"}));
  EXPECT_EQ(servable_.asked.targets, Names{"node"});
}

TEST_F(SessionRunTest, AliasesAreTheSignaturesNamesAndTheReplyHasThemToo) {
  EXPECT_EQ(Ask(Fetching("y").Varint(6, 1)).value(), WireMessage()
                                                         .Message(1, InputMessage("y", "tensor"))
                                                         .Message(3, ModelSpecMessage("m", 7))
                                                         .bytes());
  EXPECT_EQ(servable_.asked.feeds, Names{"examples:0"});
  EXPECT_EQ(servable_.asked.fetches, Names{"out:0"});
  ExpectRefused(Fetching("x").Varint(6, 1), Code::kInvalidArgument, "has no 'x'");
}

TEST_F(SessionRunTest, EndsAtTheEarlierOfDeadlineAndRunTimeout) {
  const auto deadline_ns = [this](uint64_t timeout_ms, int64_t call_deadline_ns) {
    tensor::RunContext run;
    run.deadline_ns = call_deadline_ns;
    EXPECT_TRUE(Ask(Fetching("y").Message(5, WireMessage().Varint(2, timeout_ms)), run).ok());
    return servable_.deadline_ns;
  };
  EXPECT_EQ(deadline_ns(0, kNowNs + 5), kNowNs + 5);
  EXPECT_EQ(deadline_ns(20, tensor::RunContext::kNoDeadline), kNowNs + 20'000'000);
  EXPECT_EQ(deadline_ns(20, kNowNs + 1), kNowNs + 1);
  EXPECT_EQ(deadline_ns(INT64_MAX, kNowNs + 5), kNowNs + 5);
  EXPECT_EQ(deadline_ns(static_cast<uint64_t>(-1), kNowNs + 5), kNowNs + 5);
}

TEST_F(SessionRunTest, AReplyIsNotWrittenAfterTheDeadline) {
  tensor::RunContext run;
  run.deadline_ns = 5;
  EXPECT_EQ(Ask(Fetching("y"), run).status().code(), Code::kDeadlineExceeded);
}

TEST_F(SessionRunTest, ImpossibleRequestsAreRefused) {
  ExpectRefused(WireMessage().Message(2, InputMessage("x", "tensor")), Code::kInvalidArgument,
                "at least one target");
  ExpectRefused(Fetching("y").Message(2, InputMessage("x", "other")), Code::kInvalidArgument,
                "'x' is named twice");
  ExpectRefused(Fetching("y").Message(2, InputMessage("x:0", "other")), Code::kInvalidArgument,
                "'x' is named twice");
  ExpectRefused(Fetching("y").Message(5, WireMessage().Varint(1, 3)), Code::kUnimplemented,
                "trace_level");
  ExpectRefused(WireMessage().Raw("\xff"), Code::kInvalidArgument, "SessionRunRequest");
  WireMessage many;
  for (int i = 0; i < 10'001; ++i) many.Bytes(4, "");
  ExpectRefused(many, Code::kInvalidArgument, "10000");
}

TEST_F(SessionRunTest, AliasesWithoutModelSpecUseTheDefaultSignature) {
  const WireMessage request =
      WireMessage().Message(2, InputMessage("x", "tensor")).Bytes(3, "y").Varint(6, 1);
  EXPECT_TRUE(Ask(request).ok());
}

TEST_F(SessionRunTest, ServableWithoutASessionIsUnimplemented) {
  const testing::ExampleServable none;
  SessionRunRequest request;
  request.targets = {"node"};
  base::ReplyBytes reply;
  EXPECT_EQ(AnswerSessionRun(none, request, {}, kNowNs, &reply).code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace millpond::inference
