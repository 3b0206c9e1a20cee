// REST over HTTP/2: the same requests have the same answers as over HTTP/1.1, and the limits and
// stops of HTTP/2.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/rest/content_coding.h"
#include "native/rpc/http2_session.h"
#include "native/rpc/http_session.h"
#include "tests/native/fake_session.h"
#include "tests/native/http_server.h"
#include "tests/native/no_session_events.h"
#include "tests/native/rest_http2.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using testing::FrameBytes;
using testing::Http1Answer;
using testing::HttpRequest;
using testing::kEnhanceYourCalm;
using testing::LiteralHeader;
using testing::RawHttp1;
using testing::RawHttp2;
using testing::RestHttp2;

HttpRequest Predicting(const std::string& model, const std::string& rows) {
  return {"POST", "/v1/models/" + model + ":predict", "{\"instances\": [" + rows + "]}"};
}

std::string Gzipped(const std::string& text) {
  return std::string(rest::Gzip(text, {}).value().view());
}

std::string Numbers(int count) {
  std::string rows = "1";
  for (int i = 2; i <= count; ++i) rows += ", " + std::to_string(i);
  return rows;
}

// --- the same requests over both ---

struct BothCase {
  const char* name;
  HttpRequest request;
  int status;
};

std::vector<BothCase> BothCases() {
  const std::string predict = "/v1/models/m:predict";
  const std::string body = "{\"instances\":[1,2]}";
  const std::string infer =
      "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"INT64\",\"shape\":[1],\"data\":[5]}]}";
  return {
      {"Alive", {"GET", "/healthz"}, 200},
      {"AliveWithQuery", {"GET", "/healthz?a=b"}, 200},
      {"Head", {"HEAD", "/healthz"}, 200},
      {"Preflight", {"OPTIONS", predict, "", {{"origin", "http://o"}}}, 200},
      {"OptionsWithoutOrigin", {"OPTIONS", predict}, 400},
      {"OptionsOfTheServer", {"OPTIONS", "*"}, 200},
      {"Predict", {"POST", predict, body}, 200},
      {"PredictByVersion", {"POST", "/v1/models/m/versions/7:predict", body}, 200},
      {"PredictOfAnotherVersion", {"POST", "/v1/models/m/versions/8:predict", body}, 404},
      {"PredictColumns", {"POST", predict, "{\"inputs\":{\"x\":[3]}}"}, 200},
      {"LongBodyAndAnswer", Predicting("m", Numbers(50'000)), 200},
      {"Infer", {"POST", "/v2/models/m/infer", infer}, 200},
      {"NoModel", {"POST", "/v1/models/none:predict", body}, 404},
      {"NoBody", {"POST", predict}, 400},
      {"BadJson", {"POST", predict, "{"}, 400},
      {"BadValue", {"POST", predict, "{\"instances\":[\"a\"]}"}, 400},
      {"UnknownSignature", {"POST", predict, "{\"signature_name\":\"s\",\"instances\":[1]}"}, 400},
      {"GzippedBody", {"POST", predict, Gzipped(body), {{"content-encoding", "gzip"}}}, 200},
      {"BadGzip", {"POST", predict, body, {{"content-encoding", "gzip"}}}, 400},
      {"UnknownCoding", {"POST", predict, body, {{"content-encoding", "br"}}}, 400},
      {"GzippedAnswer",
       {"POST", predict, "{\"instances\":[" + Numbers(5'000) + "]}", {{"accept-encoding", "gzip"}}},
       200},
      {"ForeignHost", {"GET", "/healthz", "", {}, "evil.example"}, 421},
      {"HostWithPort", {"GET", "/healthz", "", {}, "box:80"}, 200},
      {"TooLong", {"POST", predict, std::string(70'000, ' ')}, 413},
      {"UnknownExpectation", {"GET", "/healthz", "", {{"expect", "something"}}}, 200},
  };
}

std::string NameOfBoth(const ::testing::TestParamInfo<BothCase>& info) { return info.param.name; }

class BothHttpTest : public testing::HttpServerTest,
                     public ::testing::WithParamInterface<BothCase> {
 protected:
  // Without what an answer has of its connection and of its time.
  static std::map<std::string, std::string> HeadersOf(Http1Answer answer) {
    EXPECT_EQ(answer.headers.erase("date"), 1U);
    answer.headers.erase("connection");
    return answer.headers;
  }
};

TEST_P(BothHttpTest, SameRequestHasTheSameAnswer) {
  options_.http->hosts = {"box"};
  options_.http->has_cors = true;
  // Below the longest body above, and above the one that is served.
  const std::string name = GetParam().name;
  if (name == "TooLong") options_.http->body_bytes_max = 60'000;
  Start();
  const HttpRequest& request = GetParam().request;
  const Http1Answer one = Ask(request.AsHttp1());
  ASSERT_EQ(one.status, GetParam().status) << one.body;
  for (const size_t frame_bytes : {16'384, 7}) {
    if (frame_bytes == 7 && request.body.size() > 100'000) continue;
    RestHttp2 client(port());
    const Http1Answer two = client.AnswerOn(client.Send(request, frame_bytes));
    EXPECT_EQ(two.status, one.status);
    EXPECT_EQ(HeadersOf(two), HeadersOf(one));
    EXPECT_EQ(two.body, one.body);
    // The connection goes on, whatever the answer.
    EXPECT_EQ(client.Ask({"GET", "/healthz"}).status, 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Http2, BothHttpTest, ::testing::ValuesIn(BothCases()), NameOfBoth);

// --- the choice of the protocol ---

struct Nothing final : StreamEvents, testing::NoSessionEvents {
  void OnBegin(int32_t) override {}
  void OnHeader(int32_t, std::string_view, std::string_view) override {}
  void OnHeadersEnd(int32_t) override {}
  void OnData(int32_t, std::string_view) override {}
  void OnRequestEnd(int32_t) override {}
  void OnDataSent(int32_t) override {}
  void OnStreamClosed(int32_t) override {}
  void OnSpoken() override { is_spoken = true; }

  bool is_spoken = false;
};

// Returns true if bytes that come one by one begin HTTP/2.
bool BeginHttp2(const std::string& bytes) {
  const WireLimits limits;
  Nothing events;
  HttpSession session(limits, Http1Limits(), nullptr, &events, &events);
  for (const char byte : bytes) (void)session.Feed({&byte, 1});
  session.SubmitPing();
  OutputQueue output;
  while (session.Produce(&output) == Session::Output::kMore) {
  }
  return session.answers_half_closed() ? false : !output.empty();
}

TEST(HttpSession, IsHttp2AfterItsWholePrefaceOnly) {
  const std::string preface(kHttp2Preface);
  EXPECT_TRUE(BeginHttp2(preface));
  for (size_t size = 0; size < preface.size(); ++size) {
    EXPECT_FALSE(BeginHttp2(preface.substr(0, size)));
    std::string other = preface;
    other[size] ^= 1;
    EXPECT_FALSE(BeginHttp2(other)) << size;
  }
}

TEST(HttpSession, ClientThatHasSentNothingLeavesAtOnce) {
  const WireLimits limits;
  Nothing events;
  HttpSession session(limits, Http1Limits(), nullptr, &events, &events);
  EXPECT_TRUE(session.Feed("PRI "));
  EXPECT_FALSE(events.is_spoken);
  session.SubmitGoaway();
  EXPECT_TRUE(session.is_over());
}

// --- what HTTP/2 adds ---

class HttpOverHttp2Test : public testing::HttpServerTest {
 protected:
  static HttpRequest Alive() { return {"GET", "/healthz"}; }
};

TEST_F(HttpOverHttp2Test, StreamsOfOneConnectionDoNotWaitForOneAnother) {
  Start();
  RestHttp2 client(port());
  const uint32_t held = client.Send(Predicting("held", "1"));
  gate_.WaitForArrivals(1);
  std::vector<uint32_t> streams;
  for (int i = 0; i < 50; ++i) streams.push_back(client.Send(Predicting("m", std::to_string(i))));
  for (int i = 0; i < 50; ++i) {
    const Http1Answer answer = client.AnswerOn(streams[static_cast<size_t>(i)]);
    EXPECT_EQ(answer.status, 200);
    EXPECT_NE(answer.body.find("[" + std::to_string(i)), std::string::npos) << answer.body;
  }
  gate_.Open();
  EXPECT_EQ(client.AnswerOn(held).status, 200);
}

TEST_F(HttpOverHttp2Test, BodiesOfManyStreamsMayAlternate) {
  Start();
  RestHttp2 client(port());
  const HttpRequest request = Predicting("m", "4, 5, 6");
  std::vector<uint32_t> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(client.Begin(request, true));
  for (size_t at = 0; at < request.body.size(); ++at) {
    const bool is_last = at + 1 == request.body.size();
    for (const uint32_t stream : streams) {
      client.wire().SendFrame(testing::kDataFrame, is_last ? testing::kEndStream : 0, stream,
                              request.body.substr(at, 1));
    }
  }
  for (const uint32_t stream : streams) EXPECT_EQ(client.AnswerOn(stream).status, 200);
}

TEST_F(HttpOverHttp2Test, ExpectedContinueComesBeforeTheBody) {
  Start();
  RestHttp2 client(port());
  HttpRequest request = Predicting("m", "1");
  request.headers = {{"expect", "100-continue"}};
  const uint32_t stream = client.Begin(request, true);
  const auto informed = client.wire().NextOf(testing::kHeadersFrame);
  ASSERT_NE(informed, nullptr);
  EXPECT_EQ(client.wire().Decode(*informed), ":status: 100\n");
  client.wire().SendFrame(testing::kDataFrame, testing::kEndStream, stream, request.body);
  EXPECT_EQ(client.AnswerOn(stream).status, 200);
}

TEST_F(HttpOverHttp2Test, RefusedHeadGetsNoContinue) {
  Start();
  RestHttp2 client(port());
  HttpRequest request = Predicting("m", "1");
  request.headers = {{"expect", "100-continue"}, {"content-length", "999999999999"}};
  const uint32_t stream = client.Begin(request, true);
  const Http1Answer answer = client.AnswerOn(stream);
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(client.informed_status(stream), 0);
  // The client is told to send no body.
  const auto reset = client.wire().NextOf(testing::kRstStreamFrame);
  ASSERT_NE(reset, nullptr);
  EXPECT_EQ(reset->ErrorCode(), 0U);
  EXPECT_EQ(client.Ask(Alive()).status, 200);
}

TEST_F(HttpOverHttp2Test, BodyThatTurnsOutTooLongIsRefused) {
  options_.http->body_bytes_max = 10'000;
  Start();
  RestHttp2 client(port());
  EXPECT_EQ(client.Ask({"POST", "/v1/models/m:predict", std::string(30'000, ' ')}).status, 413);
  EXPECT_EQ(client.Ask(Alive()).status, 200);
}

TEST_F(HttpOverHttp2Test, ClientGetsNoHeaderOfItsConnection) {
  Start();
  RestHttp2 client(port());
  EXPECT_EQ(client.Ask(Alive()).status, 200);
  server_->AskHttpToGo();
  const Http1Answer answer = client.Ask(Alive());
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.count("connection"), 0U);
}

TEST_F(HttpOverHttp2Test, UnclearHostsAreRefused) {
  Start();
  RestHttp2 client(port());
  HttpRequest request = Alive();
  request.headers = {{"host", "localhost"}};
  EXPECT_EQ(client.Ask(request).status, 200);
  request.headers = {{"host", "other"}};
  EXPECT_EQ(client.Ask(request).status, 400);
  EXPECT_EQ(client.Ask({"GET", "/healthz", "", {}, "localhost:8a"}).status, 400);
}

TEST_F(HttpOverHttp2Test, TargetThatIsNoUrlIsRefused) {
  Start();
  RestHttp2 client(port());
  EXPECT_EQ(client.Ask({"GET", "/\xff"}).status, 400);
  const uint32_t stream = client.NewStream();
  client.wire().SendFrame(testing::kHeadersFrame, testing::kEndHeaders, stream,
                          LiteralHeader(":method", "CONNECT") + LiteralHeader(":authority", "h:1"));
  EXPECT_EQ(client.AnswerOn(stream).status, 501);
}

TEST_F(HttpOverHttp2Test, HeadersThatAreTooLongAreRefused) {
  Start();
  RestHttp2 client(port());
  const uint32_t stream = client.NewStream();
  client.wire().SendFrame(testing::kHeadersFrame, testing::kEndStream, stream,
                          Alive().HeaderBlock());
  std::string block;
  for (int i = 0; i < 110; ++i) block += LiteralHeader("name", std::string(120, 'v'));
  for (int i = 0; i < 3; ++i) {
    client.wire().SendFrame(testing::kContinuationFrame, i == 2 ? testing::kEndHeaders : 0, stream,
                            block);
  }
  EXPECT_EQ(client.AnswerOn(stream).status, 431);
  EXPECT_EQ(client.Ask(Alive()).status, 200);
  EXPECT_EQ(server_->LimitCountsByName().at("header_bytes"), 1);
}

TEST_F(HttpOverHttp2Test, ResetEndsTheRun) {
  Start();
  RestHttp2 client(port());
  const uint32_t stream = client.Send(Predicting("held", "1"));
  gate_.WaitForArrivals(1);
  client.wire().SendFrame(testing::kRstStreamFrame, 0, stream, testing::BigEndian(8));
  while (held_->handle_count() > 0) std::this_thread::yield();
  EXPECT_EQ(client.Ask(Alive()).status, 200);
}

TEST_F(HttpOverHttp2Test, ClientThatFloodsIsToldToCalmDown) {
  Start();
  RawHttp2 client(port());
  client.Begin();
  std::string pings;
  for (int i = 0; i < 5'000; ++i) pings += FrameBytes(testing::kPingFrame, 0, 0, "12345678");
  client.Send(pings);
  const auto goaway = client.NextOf(testing::kGoawayFrame);
  ASSERT_NE(goaway, nullptr);
  EXPECT_EQ(goaway->ErrorCode(), kEnhanceYourCalm);
}

TEST_F(HttpOverHttp2Test, AtTheLimitTheSlowestBodyMakesPlace) {
  options_.http->connection_count_max = 2;
  Start();
  RestHttp2 busy(port());
  const uint32_t held = busy.Send(Predicting("held", "1"));
  (void)busy.Begin(Predicting("m", "1"), true);  // slower still, but an answer is due beside it
  gate_.WaitForArrivals(1);
  RestHttp2 slow(port());
  const uint32_t body = slow.Begin(Predicting("m", "1"), true);
  slow.wire().SendFrame(testing::kDataFrame, 0, body, "{");
  base::SleepNs(350'000'000);  // A body that has just begun is not slow.
  RestHttp2 other(port());
  EXPECT_EQ(other.Ask(Alive()).status, 200);
  EXPECT_EQ(slow.AnswerOn(body).status, 408);
  gate_.Open();
  EXPECT_EQ(busy.AnswerOn(held).status, 200);
}

TEST_F(HttpOverHttp2Test, BodyThatDoesNotComeInTimeIsRefused) {
  options_.http->request_ns_max = 500'000'000;
  Start();
  RestHttp2 client(port());
  const uint32_t body = client.Begin(Predicting("m", "1"), true);
  const uint32_t headers = client.NewStream();
  // The rest of the headers does not come, and no other frame may come before it.
  client.wire().SendFrame(testing::kHeadersFrame, 0, headers, Alive().HeaderBlock());
  EXPECT_EQ(client.AnswerOn(body).status, 504);
  EXPECT_EQ(client.AnswerOn(headers).status, 504);
}

TEST_F(HttpOverHttp2Test, StopAnswersWhatRunsAndRefusesWhatFollows) {
  Start();
  RestHttp2 client(port());
  const uint32_t held = client.Send(Predicting("held", "5"));
  gate_.WaitForArrivals(1);
  server_->Shutdown(0);
  std::thread stop([this] { EXPECT_TRUE(server_->ShutdownHttp(10'000'000'000)); });
  const auto goaway = client.wire().NextOf(testing::kGoawayFrame);
  ASSERT_NE(goaway, nullptr);
  EXPECT_EQ(goaway->ErrorCode(), 0U);
  gate_.Open();
  EXPECT_EQ(client.AnswerOn(held).status, 200);
  stop.join();
}

// Clients of both protocols that connect, send any part of a request, and vanish.
TEST_F(HttpOverHttp2Test, AllBytesOfClientsGoBackToTheBudget) {
  Start();
  gate_.Open();
  testing::RunTogether(3, [this](int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    for (int i = 0; i < 60; ++i) {
      RestHttp2 client(port());
      for (unsigned left = random() % 4; left > 0; --left) {
        HttpRequest request = Predicting(random() % 2 == 0 ? "m" : "held", Numbers(300));
        const bool is_cut = random() % 3 == 0;
        const uint32_t stream = is_cut ? client.Begin(request, true) : client.Send(request, 100);
        if (is_cut) client.wire().SendFrame(testing::kDataFrame, 0, stream, "{\"inst");
        if (random() % 4 == 0) {
          client.wire().SendFrame(testing::kRstStreamFrame, 0, stream, testing::BigEndian(8));
        } else if (!is_cut && random() % 2 == 0) {
          EXPECT_EQ(client.AnswerOn(stream).status, 200);
        }
      }
    }
  });
  server_->Shutdown(0);
  server_->ShutdownHttp(2'000'000'000);
  server_.reset();
  EXPECT_EQ(budget_->in_use_bytes(), 0);
}

}  // namespace
}  // namespace millpond::rpc
