// HTTP/2 as events and bytes: no socket, no thread, and no limit but the protocol's own.

#include "native/rpc/http2_session.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/outgoing_reply.h"
#include "tests/native/raw_http2.h"

namespace millpond::rpc {
namespace {

using testing::FrameBytes;
using testing::GrpcHeaders;
using testing::GrpcMessage;
using testing::Http2Frame;
using testing::kAck;
using testing::kDataFrame;
using testing::kEchoPath;
using testing::kEndHeaders;
using testing::kEndStream;
using testing::kGoawayFrame;
using testing::kHeadersFrame;
using testing::kPingFrame;
using testing::kRstStreamFrame;
using testing::kSettingsFrame;
using testing::kWindowUpdateFrame;

constexpr uint32_t kLargest = 0x7fffffffU;

// Writes each event as a line, and joins the parts of a body: their ends are chance.
class EventLog final : public StreamEvents, public SessionEvents {
 public:
  void OnBegin(int32_t stream) override { Add("begin", stream); }
  void OnHeader(int32_t stream, std::string_view name, std::string_view value) override {
    Add(std::string(name) + "=" + std::string(value), stream);
  }
  void OnHeadersEnd(int32_t stream) override { Add("headers end", stream); }
  void OnData(int32_t, std::string_view data) override { body.append(data); }
  void OnRequestEnd(int32_t stream) override { Add("request end", stream); }
  void OnDataSent(int32_t) override {}
  void OnStreamClosed(int32_t stream) override { Add("closed", stream); }
  void OnSpoken() override { Add("spoken", 0); }
  void OnAcknowledged() override { Add("acknowledged", 0); }
  void OnGoawaySeen() override { Add("goaway seen", 0); }
  void OnPayload() override { ++payload_count; }
  void OnPing() override { Add("ping", 0); }
  void OnControlFrame() override { ++control_frame_count; }
  void OnForcedReset() override { Add("forced reset", 0); }
  void OnExcess(const FloodLimits::Excess& excess) override { Add(excess.reason, 0); }
  void OnTooManyResets() override { Add("too many resets", 0); }

  std::string text;
  std::string body;
  int payload_count = 0;
  int control_frame_count = 0;

 private:
  void Add(const std::string& what, int32_t stream) {
    text += std::to_string(stream) + " " + what + "\n";
  }
};

// Takes all that is written.
struct Paper {
  Transport::Result Write(const iovec* pieces, size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < count; ++i) {
      bytes.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
      size += pieces[i].iov_len;
    }
    return {Transport::State::kOk, size};
  }
  std::string bytes;
};

std::string Hello() { return testing::kPreface + FrameBytes(kSettingsFrame, 0, 0, ""); }

std::string RequestFrames(uint32_t stream, const std::string& message) {
  return FrameBytes(kHeadersFrame, kEndHeaders, stream, GrpcHeaders(kEchoPath)) +
         FrameBytes(kDataFrame, kEndStream, stream, GrpcMessage(message));
}

std::shared_ptr<OutMessage> Message(const std::string& bytes) {
  return std::make_shared<OutMessage>(std::move(base::CopyReply(bytes, {}).value()), false);
}

class Http2SessionTest : public ::testing::Test {
 protected:
  // Returns the frames that the session has for the client, but those that every client gets.
  std::vector<Http2Frame> Produced() {
    OutputQueue output;
    while (session_.Produce(&output) == Session::Output::kMore) {
    }
    Paper paper;
    output.WriteTo(&paper);
    std::vector<Http2Frame> frames;
    while (const auto frame = testing::TakeFrame(&paper.bytes)) {
      if (frame->type != kSettingsFrame && frame->type != kWindowUpdateFrame) {
        frames.push_back(*frame);
      }
    }
    EXPECT_EQ(paper.bytes, "");
    return frames;
  }
  void Answer(int32_t stream, OutgoingReply* reply, const std::string& bytes) {
    CallEnd end;
    end.message = Message(bytes);
    reply->End(std::move(end), 0);
    session_.Submit(stream, reply->Headers(), reply);
  }

  EventLog events_;
  Http2Session session_{WireLimits(), nullptr, &events_, &events_};
  testing::HeaderDecoder decoder_;
};

TEST_F(Http2SessionTest, RequestComesAsEvents) {
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x")));
  EXPECT_EQ(events_.text,
            "0 spoken\n1 begin\n1 :method=POST\n1 :scheme=http\n1 :path=/test.Echo/Echo\n"
            "1 :authority=test\n1 te=trailers\n1 content-type=application/grpc\n1 headers end\n"
            "1 request end\n");
  EXPECT_EQ(events_.body, GrpcMessage("x"));
  EXPECT_EQ(events_.payload_count, 2);
}

// However the bytes of a conversation are cut, they mean the same.
TEST_F(Http2SessionTest, EventsDoNotDependOnWhereReadsEnd) {
  const std::string bytes =
      Hello() + RequestFrames(1, "one") + FrameBytes(kPingFrame, 0, 0, "12345678") +
      FrameBytes(kRstStreamFrame, 0, 7, testing::BigEndian(8)) +  // of a stream that never was
      FrameBytes(kHeadersFrame, kEndHeaders, 3, GrpcHeaders(kEchoPath)) +
      FrameBytes(kRstStreamFrame, 0, 3, testing::BigEndian(8)) +
      RequestFrames(5, std::string(20'000, 'x'));
  ASSERT_TRUE(session_.Feed(bytes));
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t part_bytes_max = 1 + random() % 2'000;
    EventLog events;
    Http2Session session(WireLimits(), nullptr, &events, &events);
    for (size_t at = 0; at < bytes.size();) {
      const size_t part = std::min(bytes.size() - at, 1 + random() % part_bytes_max);
      ASSERT_TRUE(session.Feed(std::string_view(bytes).substr(at, part)));
      at += part;
    }
    ASSERT_EQ(events.text, events_.text);
    ASSERT_EQ(events.body, events_.body);
    ASSERT_EQ(events.payload_count, events_.payload_count);
    ASSERT_EQ(events.control_frame_count, events_.control_frame_count);
  }
}

TEST_F(Http2SessionTest, AnswerHasHeadersBodyAndTrailers) {
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x")));
  OutgoingReply reply;
  Answer(1, &reply, "the answer");
  const auto frames = Produced();
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_EQ(decoder_.Decode(frames[0]),
            ":status: 200\ncontent-type: application/grpc\n"
            "grpc-accept-encoding: identity, deflate, gzip\n");
  EXPECT_EQ(frames[1].payload, GrpcMessage("the answer"));
  EXPECT_EQ(decoder_.Decode(frames[2]), "grpc-status: 0\n");
  EXPECT_EQ(frames[2].flags & kEndStream, kEndStream);
  EXPECT_NE(events_.text.find("1 closed"), std::string::npos);
}

TEST_F(Http2SessionTest, ErrorIsOneFrameOfHeaders) {
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x")));
  OutgoingReply reply;
  CallEnd end;
  end.status = base::NotFound("no such model: ä");
  end.pushback_ms = 20;
  end.names_encodings = true;
  reply.End(std::move(end), 0);
  session_.Submit(1, reply.HeadersWithEnd());
  const auto frames = Produced();
  ASSERT_EQ(frames.size(), 1U);
  EXPECT_EQ(decoder_.Decode(frames[0]),
            ":status: 200\ncontent-type: application/grpc\ngrpc-status: 5\n"
            "grpc-message: no such model: %C3%A4\ngrpc-retry-pushback-ms: 20\n"
            "grpc-accept-encoding: identity, deflate, gzip\n");
}

// The client's window may end anywhere, also within the five bytes before a message.
TEST_F(Http2SessionTest, AnswerGoesAsTheWindowOpens) {
  constexpr uint16_t kInitialWindowSize = 4;
  const std::string window_of_3 =
      std::string("\0", 1) + static_cast<char>(kInitialWindowSize) + testing::BigEndian(3);
  ASSERT_TRUE(session_.Feed(testing::kPreface + FrameBytes(kSettingsFrame, 0, 0, window_of_3) +
                            RequestFrames(1, "x")));
  OutgoingReply reply;
  Answer(1, &reply, "the answer");
  std::string body;
  bool has_ended = false;
  for (int i = 0; i < 20 && !has_ended; ++i) {
    for (const Http2Frame& frame : Produced()) {
      if (frame.type == kDataFrame) body += frame.payload;
      has_ended = has_ended || (frame.flags & kEndStream) != 0;
    }
    EXPECT_LE(body.size(), 3U + static_cast<size_t>(i));
    ASSERT_TRUE(session_.Feed(FrameBytes(kWindowUpdateFrame, 0, 1, testing::BigEndian(1))));
  }
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(body, GrpcMessage("the answer"));
}

TEST_F(Http2SessionTest, ManyMessagesGoOneByOne) {
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x")));
  OutgoingReply reply;
  reply.Add(Message("one"), 0);
  reply.MarkBegun();
  session_.Submit(1, reply.Headers(), &reply);
  ASSERT_EQ(Produced().size(), 2U);
  EXPECT_EQ(reply.waiting_count(), 0U);
  EXPECT_TRUE(Produced().empty());
  reply.Add(Message("two"), 0);
  session_.Resume(1);
  const auto second = Produced();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].payload, GrpcMessage("two"));
  reply.End({}, 0);
  session_.Resume(1);
  EXPECT_EQ(Produced().back().flags & kEndStream, kEndStream);
}

TEST_F(Http2SessionTest, ClientWithAnAnswerIsToldToStopSending) {
  ASSERT_TRUE(
      session_.Feed(Hello() + FrameBytes(kHeadersFrame, kEndHeaders, 1, GrpcHeaders(kEchoPath))));
  OutgoingReply reply;
  CallEnd end;
  end.status = base::NotFound("no");
  reply.End(std::move(end), 0);
  session_.Submit(1, reply.HeadersWithEnd());
  const auto frames = Produced();
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[1].type, kRstStreamFrame);
  EXPECT_EQ(frames[1].ErrorCode(), 0U);
}

TEST_F(Http2SessionTest, GoawayRefusesNothingAndTheLastOneNamesAStream) {
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x")));
  session_.SubmitGoaway();
  const auto first = Produced();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].type, kGoawayFrame);
  EXPECT_EQ(first[0].payload.substr(0, 4), testing::BigEndian(kLargest));
  ASSERT_TRUE(session_.Feed(FrameBytes(kPingFrame, kAck, 0, first[1].payload)));
  EXPECT_NE(events_.text.find("goaway seen"), std::string::npos);
  session_.SubmitLastGoaway();
  EXPECT_EQ(Produced().at(0).payload.substr(0, 4), testing::BigEndian(1));
  EXPECT_FALSE(session_.is_over());
  OutgoingReply reply;
  Answer(1, &reply, "the answer");
  Produced();
  EXPECT_TRUE(session_.is_over());
}

TEST_F(Http2SessionTest, SignOfLifeIsNoSightOfAGoaway) {
  ASSERT_TRUE(session_.Feed(Hello()));
  session_.SubmitPing();
  const auto ping = Produced();
  ASSERT_EQ(ping.size(), 1U);
  ASSERT_TRUE(session_.Feed(FrameBytes(kPingFrame, kAck, 0, ping[0].payload)));
  EXPECT_EQ(events_.text, "0 spoken\n");
}

TEST_F(Http2SessionTest, WrongFrameOfAStreamIsAForcedReset) {
  // A window beyond 2^31 - 1 is an error of the stream (RFC 9113, 6.9.1).
  const std::string opens = FrameBytes(kWindowUpdateFrame, 0, 1, testing::BigEndian(kLargest));
  ASSERT_TRUE(session_.Feed(Hello() + RequestFrames(1, "x") + opens + opens));
  Produced();
  EXPECT_NE(events_.text.find("forced reset"), std::string::npos);
}

// The bytes of HPACK for a field of 4,000 bytes that goes into the table, and for the same field
// once more: one byte.
std::string LargeField() {
  const size_t size = 4'000 - 127;
  const std::string length = {'\x7f', static_cast<char>(size % 128 + 128),
                              static_cast<char>(size / 128)};
  return std::string("\x40\x01x", 3) + length + std::string(4'000, 'v');
}
const std::string kLargeFieldAgain = "\xbe";

TEST_F(Http2SessionTest, FieldThatIsRepeatedByOneByteEndsTheConnection) {
  std::string again;
  for (int i = 0; i < 10'000; ++i) again += kLargeFieldAgain;
  EXPECT_FALSE(session_.Feed(Hello() + FrameBytes(kHeadersFrame, kEndHeaders, 1,
                                                  GrpcHeaders(kEchoPath) + LargeField() + again)));
  EXPECT_NE(events_.text.find("0 headers_too_long\n"), std::string::npos);
  EXPECT_EQ(events_.text.find("headers end"), std::string::npos);
  EXPECT_LT(events_.text.size(), 2 * WireLimits::kHeadExcess * WireLimits().header_list_bytes_max);
}

TEST_F(Http2SessionTest, TrailersHaveTheLimitOfHeaders) {
  ASSERT_TRUE(session_.Feed(Hello() +
                            FrameBytes(kHeadersFrame, kEndHeaders, 1, GrpcHeaders(kEchoPath)) +
                            FrameBytes(kDataFrame, 0, 1, GrpcMessage("x"))));
  std::string fields = LargeField();
  for (int i = 0; i < 30; ++i) fields += kLargeFieldAgain;
  ASSERT_TRUE(session_.Feed(FrameBytes(kHeadersFrame, kEndHeaders | kEndStream, 1, fields)));
  EXPECT_EQ(events_.text.find("headers_too_long"), std::string::npos);
  ASSERT_TRUE(session_.Feed(FrameBytes(kHeadersFrame, kEndHeaders, 3, GrpcHeaders(kEchoPath))));
  for (int i = 0; i < 30; ++i) fields += kLargeFieldAgain;
  EXPECT_FALSE(session_.Feed(FrameBytes(kHeadersFrame, kEndHeaders | kEndStream, 3, fields)));
  EXPECT_NE(events_.text.find("0 headers_too_long\n"), std::string::npos);
}

class SlowHeadTest : public Http2SessionTest {
 protected:
  bool IsTooSlowAt(double seconds) {
    session_.CheckTimes(static_cast<int64_t>(seconds * WireLimits::kSecondNs));
    return events_.text.find("headers_too_slow") != std::string::npos;
  }
  const std::string head_ = GrpcHeaders(kEchoPath);
};

TEST_F(SlowHeadTest, IsRefusedHoweverItIsCut) {
  const std::string frames = FrameBytes(kHeadersFrame, 0, 1, head_) +
                             FrameBytes(testing::kContinuationFrame, kEndHeaders, 1, "");
  for (const size_t sent : {size_t{9}, size_t{20}, 9 + head_.size(), frames.size() - 1}) {
    Http2Session session(WireLimits(), nullptr, &events_, &events_);
    events_.text.clear();
    ASSERT_TRUE(session.Feed(Hello() + frames.substr(0, sent)));
    session.CheckTimes(100 * WireLimits::kSecondNs);
    session.CheckTimes(109 * WireLimits::kSecondNs);
    EXPECT_EQ(events_.text.find("headers_too_slow"), std::string::npos) << sent;
    session.CheckTimes(110 * WireLimits::kSecondNs);
    EXPECT_NE(events_.text.find("headers_too_slow"), std::string::npos) << sent;
  }
}

TEST_F(SlowHeadTest, IsOverOnceItIsComplete) {
  ASSERT_TRUE(session_.Feed(Hello() + FrameBytes(kHeadersFrame, 0, 1, head_)));
  EXPECT_FALSE(IsTooSlowAt(100));
  ASSERT_TRUE(session_.Feed(FrameBytes(testing::kContinuationFrame, kEndHeaders, 1, "")));
  EXPECT_FALSE(IsTooSlowAt(200));
  // Another head each time, as a busy client has.
  for (uint32_t stream = 3; stream < 50; stream += 2) {
    ASSERT_TRUE(session_.Feed(FrameBytes(kHeadersFrame, 0, stream, head_)));
    EXPECT_FALSE(IsTooSlowAt(200 + 9.0 * stream));
    ASSERT_TRUE(session_.Feed(FrameBytes(testing::kContinuationFrame, kEndHeaders, stream, "")));
  }
}

TEST_F(Http2SessionTest, FramesOfUnknownTypesAreCounted) {
  const std::string unknown = FrameBytes(10, 0, 0, "") + FrameBytes(200, 0, 7, "some bytes");
  ASSERT_TRUE(session_.Feed(Hello()));
  events_.text.clear();
  for (const char byte : unknown) ASSERT_TRUE(session_.Feed({&byte, 1}));
  EXPECT_EQ(events_.text, "0 forced reset\n0 forced reset\n");
}

TEST_F(Http2SessionTest, ClientOfHttp1GetsAnAnswerOfHttp1) {
  EXPECT_EQ(session_.Feed("GET / HTTP/1.1\r\n\r\n"), false);
  OutputQueue output;
  EXPECT_EQ(session_.Produce(&output), Session::Output::kNothing);
  EXPECT_EQ(session_.Produce(&output), Session::Output::kNothing);
  Paper paper;
  output.WriteTo(&paper);
  EXPECT_EQ(paper.bytes.find("HTTP/1.1 400 Bad Request\r\n"), 0U);
  EXPECT_EQ(paper.bytes.rfind("HTTP/1.1 400"), 0U);
  EXPECT_TRUE(session_.is_over());
  EXPECT_EQ(events_.text, "");
}

TEST_F(Http2SessionTest, StrangerGetsNothing) {
  EXPECT_EQ(session_.Feed("\x16\x03\x01 a handshake of TLS"), false);
  EXPECT_TRUE(Produced().empty());
}

TEST_F(Http2SessionTest, NothingIsSentToAClientThatHasNotSpoken) {
  EXPECT_TRUE(Produced().empty());
  ASSERT_TRUE(session_.Feed(Hello().substr(0, 10)));
  OutputQueue output;
  EXPECT_EQ(session_.Produce(&output), Session::Output::kNothing);
  EXPECT_TRUE(output.empty());
}

TEST(Http2Session, WithoutMemoryIsNotMade) {
  base::ByteBudget budget(0);
  base::ByteBudget::Share all(&budget, base::ByteBudget::Use::kConnection);
  ASSERT_TRUE(all.Resize(2 * base::ByteBudget::kReserveBytes));
  EventLog events;
  EXPECT_FALSE(Http2Session(WireLimits(), &budget, &events, &events).is_made());
}

}  // namespace
}  // namespace millpond::rpc
