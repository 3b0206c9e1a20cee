// The requirements of RFC 9113 and RFC 7541 for a server. Each case sends frames that break one
// rule and checks the server's answer. h2spec's list of cases
// (https://github.com/summerwind/h2spec) was the guide; no code was taken from it.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/native/raw_http2.h"
#include "tests/native/wire_server.h"

namespace millpond::rpc {
namespace {

using testing::BigEndian;
using testing::FrameBytes;
using testing::GrpcHeaders;
using testing::GrpcMessage;
using testing::Http2Frame;
using testing::kAck;
using testing::kContinuationFrame;
using testing::kDataFrame;
using testing::kEchoPath;
using testing::kEndHeaders;
using testing::kEndStream;
using testing::kEnhanceYourCalm;
using testing::kGoawayFrame;
using testing::kHeadersFrame;
using testing::kPingFrame;
using testing::kPriorityFrame;
using testing::kRstStreamFrame;
using testing::kSettingsFrame;
using testing::kWindowUpdateFrame;
using testing::LiteralHeader;
using testing::RawHttp2;

// RFC 9113, 7.
enum ErrorCode : uint32_t {
  kProtocolError = 1,
  kFlowControlError = 3,
  kStreamClosed = 5,
  kFrameSizeError = 6,
  kCompressionError = 9,
};

constexpr uint8_t kPadded = 8;

std::string Setting(uint16_t name, uint32_t value) {
  return BigEndian(name).substr(2) + BigEndian(value);
}

std::string Headers(uint32_t stream, const std::string& block, uint8_t more_flags = 0) {
  return FrameBytes(kHeadersFrame, kEndHeaders | more_flags, stream, block);
}

// Returns a request whose header block ends with `more`.
std::string RequestWith(const std::string& more) {
  return Headers(1, GrpcHeaders(kEchoPath, more), kEndStream);
}

struct Case {
  const char* name;
  const char* section;
  std::string frames;
  std::vector<uint32_t> codes;  // the server may answer with any of them
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

// --- errors of the connection: GOAWAY, and the connection ends ---

class ConnectionErrorTest : public testing::WireServerTest,
                            public ::testing::WithParamInterface<Case> {};

TEST_P(ConnectionErrorTest, EndsTheConnection) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(GetParam().frames);
  const auto goaway = connection.NextOf(kGoawayFrame);
  ASSERT_NE(goaway, nullptr) << "RFC " << GetParam().section;
  EXPECT_NE(std::find(GetParam().codes.begin(), GetParam().codes.end(), goaway->ErrorCode()),
            GetParam().codes.end())
      << "RFC " << GetParam().section << ": " << goaway->ErrorCode();
  connection.Rest();
  EXPECT_TRUE(connection.IsClosedByServer()) << "RFC " << GetParam().section;
  EXPECT_EQ(Echo("after"), "after");
}

const std::string kTooLarge(70'000, 'x');

INSTANTIATE_TEST_SUITE_P(
    OfEachRule, ConnectionErrorTest,
    ::testing::Values(
        Case{"DataOnStreamZero", "9113 6.1", FrameBytes(kDataFrame, 0, 0, "x"), {kProtocolError}},
        Case{"DataOnIdleStream",
             "9113 5.1",
             FrameBytes(kDataFrame, 0, 1, "x"),
             {kProtocolError, kStreamClosed}},
        Case{"PaddingLongerThanData",
             "9113 6.1",
             Headers(1, GrpcHeaders(kEchoPath)) + FrameBytes(kDataFrame, kPadded, 1, "\x09x"),
             {kProtocolError}},
        Case{"HeadersOnStreamZero",
             "9113 6.2",
             Headers(0, GrpcHeaders(kEchoPath)),
             {kProtocolError}},
        Case{"HeadersOnEvenStream",
             "9113 5.1.1",
             Headers(2, GrpcHeaders(kEchoPath)),
             {kProtocolError}},
        Case{"PaddingLongerThanHeaders",
             "9113 6.2",
             FrameBytes(kHeadersFrame, kEndHeaders | kPadded, 1, "\x7f" + GrpcHeaders("/p")),
             {kProtocolError}},
        Case{"HeadersThenData",
             "9113 6.2",
             FrameBytes(kHeadersFrame, 0, 1, GrpcHeaders(kEchoPath)) +
                 FrameBytes(kDataFrame, kEndStream, 1, GrpcMessage("x")),
             {kProtocolError}},
        Case{"ContinuationAlone",
             "9113 6.10",
             FrameBytes(kContinuationFrame, kEndHeaders, 1, ""),
             {kProtocolError}},
        Case{"ContinuationOfAnotherStream",
             "9113 6.10",
             FrameBytes(kHeadersFrame, 0, 1, GrpcHeaders(kEchoPath)) +
                 FrameBytes(kContinuationFrame, kEndHeaders, 3, ""),
             {kProtocolError}},
        Case{"RstStreamOnStreamZero",
             "9113 6.4",
             FrameBytes(kRstStreamFrame, 0, 0, BigEndian(8)),
             {kProtocolError}},
        Case{"RstStreamOfThreeBytes",
             "9113 6.4",
             Headers(1, GrpcHeaders(kEchoPath)) + FrameBytes(kRstStreamFrame, 0, 1, "abc"),
             {kFrameSizeError}},
        Case{"SettingsOnStreamOne",
             "9113 6.5",
             FrameBytes(kSettingsFrame, 0, 1, ""),
             {kProtocolError}},
        Case{"SettingsOfFiveBytes",
             "9113 6.5",
             FrameBytes(kSettingsFrame, 0, 0, "12345"),
             {kFrameSizeError}},
        Case{"SettingsAckWithPayload",
             "9113 6.5",
             FrameBytes(kSettingsFrame, kAck, 0, Setting(3, 1)),
             {kFrameSizeError}},
        Case{"EnablePushOfTwo",
             "9113 6.5.2",
             FrameBytes(kSettingsFrame, 0, 0, Setting(2, 2)),
             {kProtocolError}},
        Case{"InitialWindowTooLarge",
             "9113 6.5.2",
             FrameBytes(kSettingsFrame, 0, 0, Setting(4, 0x80000000U)),
             {kFlowControlError}},
        Case{"MaxFrameSizeTooSmall",
             "9113 6.5.2",
             FrameBytes(kSettingsFrame, 0, 0, Setting(5, 16'383)),
             {kProtocolError}},
        Case{"PushPromiseOfAClient",
             "9113 8.4",
             FrameBytes(5, kEndHeaders, 1, BigEndian(2) + GrpcHeaders(kEchoPath)),
             {kProtocolError}},
        Case{"PingOfSevenBytes",
             "9113 6.7",
             FrameBytes(kPingFrame, 0, 0, "1234567"),
             {kFrameSizeError}},
        Case{"PingOnStreamOne",
             "9113 6.7",
             FrameBytes(kPingFrame, 0, 1, "12345678"),
             {kProtocolError}},
        Case{"GoawayOnStreamOne",
             "9113 6.8",
             FrameBytes(kGoawayFrame, 0, 1, BigEndian(0) + BigEndian(0)),
             {kProtocolError}},
        Case{"WindowUpdateOfZero",
             "9113 6.9",
             FrameBytes(kWindowUpdateFrame, 0, 0, BigEndian(0)),
             {kProtocolError}},
        Case{"WindowUpdateOfThreeBytes",
             "9113 6.9",
             FrameBytes(kWindowUpdateFrame, 0, 0, "abc"),
             {kFrameSizeError}},
        Case{"WindowOfConnectionOverflows",
             "9113 6.9.1",
             FrameBytes(kWindowUpdateFrame, 0, 0, BigEndian(0x7fffffffU)),
             {kFlowControlError}},
        Case{"FrameAboveTheLimit",
             "9113 4.2",
             Headers(1, GrpcHeaders(kEchoPath)) + FrameBytes(kDataFrame, 0, 1, kTooLarge),
             {kFrameSizeError}},
        Case{"IndexZero", "7541 6.1", Headers(1, "\x80"), {kCompressionError}},
        Case{"IndexBeyondTheTable", "7541 2.3.3", Headers(1, "\xff\x20"), {kCompressionError}},
        Case{"TableSizeAboveTheSetting",
             "7541 6.3",
             Headers(1, "\x3f\xe1\xff\x03" + GrpcHeaders(kEchoPath)),
             {kCompressionError}},
        Case{"HeaderBlockEndsWithinAHeader",
             "7541 5.2",
             Headers(1, std::string("\x00\x05na", 4)),
             {kCompressionError}}),
    NameOf);

// --- errors of a stream: RST_STREAM, and the connection goes on ---

class StreamErrorTest : public testing::WireServerTest,
                        public ::testing::WithParamInterface<Case> {};

TEST_P(StreamErrorTest, EndsTheStreamOnly) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(GetParam().frames);
  const auto reset = connection.NextOf(kRstStreamFrame);
  ASSERT_NE(reset, nullptr) << "RFC " << GetParam().section;
  EXPECT_NE(std::find(GetParam().codes.begin(), GetParam().codes.end(), reset->ErrorCode()),
            GetParam().codes.end())
      << "RFC " << GetParam().section << ": " << reset->ErrorCode();
  connection.Send(Headers(101, GrpcHeaders(kEchoPath)) +
                  FrameBytes(kDataFrame, kEndStream, 101, GrpcMessage("x")));
  EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

const std::string kWithoutPath = LiteralHeader(":method", "POST") +
                                 LiteralHeader(":scheme", "http") +
                                 LiteralHeader("content-type", "application/grpc");

INSTANTIATE_TEST_SUITE_P(
    OfEachRule, StreamErrorTest,
    ::testing::Values(
        Case{"UppercaseName",
             "9113 8.2.1",
             RequestWith(LiteralHeader("Name", "x")),
             {kProtocolError}},
        Case{"ConnectionHeader",
             "9113 8.2.2",
             RequestWith(LiteralHeader("connection", "close")),
             {kProtocolError}},
        Case{"TeOfGzip", "9113 8.2.2", RequestWith(LiteralHeader("te", "gzip")), {kProtocolError}},
        Case{"UnknownPseudoHeader",
             "9113 8.3",
             Headers(1, LiteralHeader(":test", "x") + GrpcHeaders(kEchoPath), kEndStream),
             {kProtocolError}},
        Case{"PseudoHeaderAfterOthers",
             "9113 8.3",
             RequestWith(LiteralHeader(":path", "/other")),
             {kProtocolError}},
        Case{"NoPath", "9113 8.3.1", Headers(1, kWithoutPath, kEndStream), {kProtocolError}},
        Case{"TwoMethods",
             "9113 8.3.1",
             Headers(1, LiteralHeader(":method", "POST") + GrpcHeaders(kEchoPath), kEndStream),
             {kProtocolError}},
        Case{"ContentLengthIsAnother",
             "9113 8.1.1",
             Headers(1, GrpcHeaders(kEchoPath, LiteralHeader("content-length", "1"))) +
                 FrameBytes(kDataFrame, kEndStream, 1, GrpcMessage("x")),
             {kProtocolError}},
        Case{"WindowOfStreamOverflows",
             "9113 6.9.1",
             Headers(1, GrpcHeaders(kEchoPath)) +
                 FrameBytes(kWindowUpdateFrame, 0, 1, BigEndian(0x7fffffffU)),
             {kFlowControlError}},
        Case{"HeadersAboveTheLimit",
             "9113 10.5.1",
             Headers(
                 1,
                 [] {
                   std::string block = GrpcHeaders(kEchoPath);
                   for (int i = 0; i < 120; ++i) block += LiteralHeader("x", std::string(120, 'x'));
                   return block;
                 }(),
                 kEndStream),
             {kEnhanceYourCalm}}),
    NameOf);

// --- valid frames, limits and deviations ---

using WireTest = testing::WireServerTest;

TEST_F(WireTest, PingIsAnsweredWithItsBytes) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.SendFrame(kPingFrame, 0, 0, "12345678");
  const auto answer = connection.NextOf(kPingFrame);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->flags, kAck);
  EXPECT_EQ(answer->payload, "12345678");
}

TEST_F(WireTest, UnknownFramesAndSettingsAreIgnored) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(FrameBytes(0x42, 0xff, 0, "anything") +
                  FrameBytes(kSettingsFrame, 0, 0, Setting(0xffff, 7)));
  connection.Send(Headers(1, GrpcHeaders(kEchoPath)) +
                  FrameBytes(kDataFrame, kEndStream, 1, GrpcMessage("x")));
  EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

// A deviation: RFC 9113, 6.4, requires a connection error. gRPC's C core sends such a frame if a
// call is cancelled before its headers were written.
TEST_F(WireTest, ResetOfAStreamThatWasNotOpenedIsIgnored) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.SendFrame(kRstStreamFrame, 0, 1, BigEndian(8));
  connection.Send(Headers(3, GrpcHeaders(kEchoPath)) +
                  FrameBytes(kDataFrame, kEndStream, 3, GrpcMessage("x")));
  EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

TEST_F(WireTest, BytesMayComeOneByOne) {
  RawHttp2 connection(port());
  const std::string bytes = testing::kPreface + FrameBytes(kSettingsFrame, 0, 0, "") +
                            FrameBytes(kRstStreamFrame, 0, 1, BigEndian(8)) +
                            Headers(3, GrpcHeaders(kEchoPath)) +
                            FrameBytes(kDataFrame, 0, 3, GrpcMessage("abc").substr(0, 2)) +
                            FrameBytes(kDataFrame, kEndStream, 3, GrpcMessage("abc").substr(2));
  for (const char byte : bytes) connection.Send(std::string(1, byte));
  EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

// Also if the server has accepted the connection before the client's first byte: a frame of HTTP/2
// before the sentence would be the answer that the client sees.
TEST_F(WireTest, Http1IsAnsweredWithASentence) {
  RawHttp2 connection(port());
  ASSERT_TRUE(HasConnections(1));
  EXPECT_FALSE(connection.IsReadableWithin(100));
  connection.Send("GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n");
  const std::string answer = connection.Rest();
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 400");
  EXPECT_NE(answer.find("gRPC"), std::string::npos);
  EXPECT_NE(answer.find("--rest_api_port"), std::string::npos);
  const size_t body = answer.find("\r\n\r\n") + 4;
  const std::string length = "content-length: " + std::to_string(answer.size() - body);
  EXPECT_NE(answer.find(length), std::string::npos);
  EXPECT_TRUE(connection.IsClosedByServer());
}

TEST_F(WireTest, AnotherMethodOrContentTypeGetsItsHttpStatus) {
  for (const auto& [method, type, status] :
       {std::tuple("GET", "application/grpc", "405"), std::tuple("POST", "text/html", "415")}) {
    RawHttp2 connection(port());
    connection.Begin();
    connection.Send(Headers(1,
                            LiteralHeader(":method", method) + LiteralHeader(":scheme", "http") +
                                LiteralHeader(":path", kEchoPath) +
                                LiteralHeader(":authority", "test") +
                                LiteralHeader("content-type", type),
                            kEndStream));
    EXPECT_NE(connection.HeadersToTheEnd().find(std::string(":status: ") + status),
              std::string::npos);
  }
}

// A deviation: RFC 9113, 5.1.1, requires a connection error. nghttp2 treats the lower stream as one
// that was closed, and ignores its headers.
TEST_F(WireTest, HeadersOfALowerStreamAreIgnored) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.Send(Headers(5, GrpcHeaders(kEchoPath)) + Headers(3, GrpcHeaders(kEchoPath)));
  connection.SendFrame(kDataFrame, kEndStream, 5, GrpcMessage("x"));
  EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 0"), std::string::npos);
}

// A deviation: RFC 9113, 5.1.2, requires an error of the stream. nghttp2 ends the connection of a
// client that has acknowledged the limit and breaks it.
TEST_F(WireTest, TooManyStreamsEndTheConnection) {
  RawHttp2 connection(port());
  connection.Begin();
  ASSERT_NE(connection.NextOf(kSettingsFrame), nullptr);
  connection.SendFrame(kSettingsFrame, kAck, 0, "");
  for (uint32_t i = 0; i <= kStreamsMax; ++i) {
    connection.Send(Headers(2 * i + 1, GrpcHeaders(kEchoPath)));
  }
  const auto goaway = connection.NextOf(kGoawayFrame);
  ASSERT_NE(goaway, nullptr);
  EXPECT_EQ(goaway->ErrorCode(), kProtocolError);
}

// A client that reads the answers to its flood as it goes.
TEST_F(WireTest, ClientThatFloodsIsToldToCalmDown) {
  constexpr int kPartCount = 500;
  const std::string closed =
      Headers(3, GrpcHeaders(kEchoPath)) + FrameBytes(kRstStreamFrame, 0, 3, BigEndian(8));
  const struct {
    std::string frame;
    bool is_answered;
    const char* reason;
    std::string before = "";
  } floods[] = {
      {FrameBytes(kSettingsFrame, 0, 0, ""), true, "too_many_control_frames"},
      {FrameBytes(kPingFrame, 0, 0, "12345678"), true, "too_many_pings"},
      {FrameBytes(kWindowUpdateFrame, 0, 0, BigEndian(1)), false, "too_many_control_frames"},
      {FrameBytes(kPriorityFrame, 0, 1, "12345"), false, "too_many_control_frames"},
      {FrameBytes(kWindowUpdateFrame, 0, 3, BigEndian(1)), false, "too_many_control_frames",
       closed},
      {FrameBytes(kRstStreamFrame, 0, 3, BigEndian(8)), false, "too_many_control_frames", closed},
      {FrameBytes(kDataFrame, 0, 3, ""), false, "too_many_control_frames", closed},
      {Headers(1, GrpcHeaders(kEchoPath)), false, "too_many_control_frames", closed},
      {FrameBytes(kDataFrame, 0, 3, ""), false, "too_many_control_frames",
       Headers(3, GrpcHeaders(kEchoPath))},
      {FrameBytes(kRstStreamFrame, 0, 99, BigEndian(8)), false, "too_many_resets"},
      {FrameBytes(200, 0, 0, ""), false, "too_many_resets"},
  };
  for (const auto& flood : floods) {
    RawHttp2 connection(port());
    connection.Begin();
    connection.Send(flood.before);
    std::string part;
    for (int i = 0; i < kPartCount; ++i) part += flood.frame;
    std::unique_ptr<Http2Frame> goaway;
    const int frame_count = flood.reason == std::string("too_many_resets") ? 11'000 : 2'000;
    for (int sent = 0; goaway == nullptr && sent < frame_count; sent += kPartCount) {
      if (!connection.Send(part)) break;
      for (int left = flood.is_answered ? kPartCount : 0; goaway == nullptr && left > 0;) {
        auto answer = connection.Next();
        ASSERT_NE(answer, nullptr) << flood.reason;
        if ((answer->flags & kAck) != 0 && answer->type != kGoawayFrame) left -= 1;
        if (answer->type == kGoawayFrame) goaway = std::move(answer);
      }
    }
    if (goaway == nullptr) goaway = connection.NextOf(kGoawayFrame);
    ASSERT_NE(goaway, nullptr) << flood.reason << " " << int{flood.frame[3]};
    EXPECT_EQ(goaway->ErrorCode(), kEnhanceYourCalm) << flood.reason;
    EXPECT_EQ(goaway->payload.substr(8), flood.reason);
    connection.Rest();
    EXPECT_TRUE(connection.IsClosedByServer()) << flood.reason;
  }
  EXPECT_EQ(Echo("after"), "after");
}

// Without a GOAWAY frame: nghttp2 gives up the session.
TEST_F(WireTest, EndlessContinuationsEndTheConnection) {
  RawHttp2 connection(port());
  connection.Begin();
  connection.SendFrame(kHeadersFrame, 0, 1, GrpcHeaders(kEchoPath));
  const std::string part = FrameBytes(kContinuationFrame, 0, 1, LiteralHeader("x", "y"));
  for (int i = 0; i < 100'000 && connection.Send(part); ++i) {
  }
  connection.Rest();
  EXPECT_TRUE(connection.IsClosedByServer());
  EXPECT_EQ(Echo("after"), "after");
}

TEST_F(WireTest, MalformedTimeoutIsRefused) {
  for (const char* const timeout : {"", "S", "1", "1x", "123456789S", "-1S"}) {
    RawHttp2 connection(port());
    connection.Begin();
    connection.Send(RequestWith(LiteralHeader("grpc-timeout", timeout)));
    EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 3"), std::string::npos) << timeout;
  }
}

TEST_F(WireTest, NumberOfMessagesOfAUnaryCallIsChecked) {
  for (const std::string& data : {std::string(), GrpcMessage("a") + GrpcMessage("b")}) {
    RawHttp2 connection(port());
    connection.Begin();
    connection.Send(Headers(1, GrpcHeaders(kEchoPath)) +
                    FrameBytes(kDataFrame, kEndStream, 1, data));
    EXPECT_NE(connection.HeadersToTheEnd().find("grpc-status: 12"), std::string::npos);
  }
}

TEST_F(WireTest, ConcurrentClientsGetTheirAnswers) {
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([this, client] {
      for (int i = 0; i < 20; ++i) {
        const std::string bytes(client * 10'000 + i, static_cast<char>('a' + client));
        EXPECT_EQ(Echo(bytes), bytes);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace millpond::rpc
