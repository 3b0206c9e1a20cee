// The limits of what a client that reads or sends too little can make the server keep or do.

#include "native/rpc/wire_limits.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/native/raw_http2.h"
#include "tests/native/wire_server.h"

namespace millpond::rpc {
namespace {

using testing::BigEndian;
using testing::FrameBytes;
using testing::GrpcHeaders;
using testing::GrpcMessage;
using testing::kDataFrame;
using testing::kEndHeaders;
using testing::kEndStream;
using testing::kEnhanceYourCalm;
using testing::kGoawayFrame;
using testing::kHeadersFrame;
using testing::kRstStreamFrame;
using testing::kSettingsFrame;
using testing::kWindowUpdateFrame;
using testing::RawHttp2;

constexpr char kPath[] = "/test.Echo/Echo";
constexpr uint32_t kCancel = 8;
constexpr int64_t kSecondNs = WireLimits::kSecondNs;

std::string Request(uint32_t stream, const std::string& bytes) {
  return FrameBytes(kHeadersFrame, kEndHeaders, stream, GrpcHeaders(kPath)) +
         FrameBytes(kDataFrame, kEndStream, stream, GrpcMessage(bytes));
}

std::string WindowOfStreams(uint32_t bytes) {
  constexpr uint16_t kInitialWindowSize = 4;
  return FrameBytes(kSettingsFrame, 0, 0,
                    BigEndian(kInitialWindowSize).substr(2) + BigEndian(bytes));
}

TEST(RateLimit, AllowsABurstAndThenARate) {
  RateLimit limit(3, 2);
  int64_t now_ns = 5 * kSecondNs;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Take(now_ns));
  EXPECT_FALSE(limit.Take(now_ns));
  now_ns += kSecondNs;
  EXPECT_TRUE(limit.Take(now_ns));
  EXPECT_TRUE(limit.Take(now_ns));
  EXPECT_FALSE(limit.Take(now_ns));
  now_ns += 100 * kSecondNs;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Take(now_ns));
  EXPECT_FALSE(limit.Take(now_ns));
  limit.Fill();
  EXPECT_TRUE(limit.Take(now_ns));
}

TEST(WithRequestTimeTest, LongerRequestsMayPauseForAsLong) {
  EXPECT_EQ(WithRequestTime({}, 3'600 * kSecondNs).pause_ns, 3'600 * kSecondNs);
}

TEST(WithRequestTimeTest, ShorterRequestsAndNoLimitKeepThePause) {
  for (const int64_t request_ns_max : {int64_t{0}, kSecondNs}) {
    EXPECT_EQ(WithRequestTime({}, request_ns_max).pause_ns, 60 * kSecondNs);
  }
}

using WireLimitsTest = testing::WireServerTest;

TEST_F(WireLimitsTest, MessageInPartsOfOneByteArrives) {
  std::string message;
  for (int i = 0; i < 20'000; ++i) message += static_cast<char>(i % 251);
  EXPECT_EQ(Echo(message, 1), message);
}

class ImpatientWireTest : public testing::WireServerTest {
 protected:
  ImpatientWireTest() : WireServerTest(Limits()) {}

 private:
  static WireLimits Limits() {
    WireLimits limits;
    limits.pause_ns = 1;
    limits.head_ns = 1;
    limits.reset_burst = 5;
    limits.resets_per_second = 1;
    return limits;
  }
};

// Its answer would keep its memory, and a stop would wait for it.
TEST_F(ImpatientWireTest, AnswerWithoutAWindowIsGivenUp) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(WindowOfStreams(0) + Request(1, "unread"));
  const auto reset = connection.NextOf(kRstStreamFrame);
  ASSERT_NE(reset, nullptr);
  EXPECT_EQ(reset->stream, 1U);
  EXPECT_EQ(reset->ErrorCode(), kCancel);
  connection.Send(WindowOfStreams(65'535) + Request(3, "read"));
  const auto data = connection.NextOf(kDataFrame);
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(data->stream, 3U);
}

TEST_F(ImpatientWireTest, HeadThatDoesNotEndEndsTheConnection) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.SendFrame(kHeadersFrame, 0, 1, GrpcHeaders(kPath));
  const auto goaway = connection.NextOf(kGoawayFrame);
  ASSERT_NE(goaway, nullptr);
  EXPECT_EQ(goaway->ErrorCode(), kEnhanceYourCalm);
  EXPECT_EQ(goaway->payload.substr(8), "headers_too_slow");
  connection.Rest();
  EXPECT_TRUE(connection.IsClosedByServer());
  EXPECT_EQ(Echo("after"), "after");
}

// Each wrong frame resets its stream, whose request may be on its way to a run by then.
TEST_F(ImpatientWireTest, ClientThatProvokesResetsIsToldToCalmDown) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(WindowOfStreams(0));
  for (uint32_t stream = 1; stream < 40; stream += 2) {
    const std::string overflow = FrameBytes(kWindowUpdateFrame, 0, stream, BigEndian(0x7fffffff)) +
                                 FrameBytes(kWindowUpdateFrame, 0, stream, BigEndian(0x7fffffff));
    if (!connection.Send(Request(stream, "x") + overflow)) break;
  }
  const auto goaway = connection.NextOf(kGoawayFrame);
  ASSERT_NE(goaway, nullptr);
  EXPECT_EQ(goaway->ErrorCode(), kEnhanceYourCalm);
}

// --- The limits alone ---

constexpr int64_t kBeginNs = 1'000 * kSecondNs;

TEST(FloodLimits, PayloadPaysForControlFrames) {
  WireLimits limits;
  limits.control_frames_max = 5;
  FloodLimits flood(limits);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(flood.TakeControlFrame(kBeginNs));
    if (round < 2) flood.TakePayload();
  }
  const auto excess = flood.TakeControlFrame(kBeginNs);
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->limit, ReachedLimit::kControlFrames);
  // Some are free each second.
  EXPECT_FALSE(flood.TakeControlFrame(kBeginNs + kSecondNs));
}

TEST(FloodLimits, PingsMayBeEarlyTwiceOrWhileDataFlows) {
  const WireLimits limits;
  FloodLimits flood(limits);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(flood.TakePing(kBeginNs));
  const auto excess = flood.TakePing(kBeginNs);
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->limit, ReachedLimit::kPings);
  for (int i = 0; i < 10; ++i) {
    flood.TakePayload();
    EXPECT_FALSE(flood.TakePing(kBeginNs));
  }
  for (int i = 1; i < 10; ++i) EXPECT_FALSE(flood.TakePing(kBeginNs + i * limits.ping_interval_ns));
}

}  // namespace
}  // namespace millpond::rpc
