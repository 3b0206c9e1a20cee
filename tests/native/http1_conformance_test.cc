// The requirements of RFC 9110 and RFC 9112 for a server, as raw requests: each is sent as one
// piece, and byte by byte, and has the same answers.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/native/http_server.h"

namespace millpond::rpc {
namespace {

using testing::Http1Answer;
using testing::RawHttp1;

constexpr char kGet[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr char kPost[] = "POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n";
constexpr char kBody[] = "{\"instances\":[1]}";  // 17 bytes

std::string Get(const std::string& headers) {
  return "GET /healthz HTTP/1.1\r\n" + headers + "\r\n";
}
std::string Post(const std::string& rest) { return kPost + rest; }
std::string Length(const std::string& value) { return "Content-Length: " + value + "\r\n"; }
const char kChunked[] = "Transfer-Encoding: chunked\r\n\r\n";

struct Case {
  const char* name;
  const char* section;
  std::string sent;
  std::vector<int> statuses;  // of the answers, in order
  bool is_closed;             // the server closes after them
};

std::vector<Case> Cases() {
  const std::string whole = Post(Length("17") + "\r\n" + kBody);
  const std::string chunks = "11\r\n" + std::string(kBody) + "\r\n";
  return {
      // --- the request line ---
      {"Get", "9112 3", kGet, {200}, false},
      {"EmptyLinesBefore", "9112 2.2", std::string("\r\n\r\n") + kGet, {200}, false},
      {"LowerCaseMethod", "9110 9.1", "get /healthz HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"UnknownMethod", "9110 9.1", "FROB /healthz HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"NoTarget", "9112 3", "GET HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"TwoSpaces", "9112 3", "GET  /healthz HTTP/1.1\r\nHost: h\r\n\r\n", {200}, false},
      {"SpaceInTarget", "9112 3.2", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"ControlInTarget", "9112 3.2", "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"NulInTarget",
       "9112 3.2",
       std::string("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 29),
       {400},
       true},
      {"HighByteInTarget", "9112 3.2", "GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"NoVersion", "9112 2.3", "GET /\r\nHost: h\r\n\r\n", {505}, true},
      {"Version09", "9112 2.3", "GET /healthz HTTP/0.9\r\nHost: h\r\n\r\n", {505}, true},
      {"Version12", "9112 2.3", "GET /healthz HTTP/1.2\r\nHost: h\r\n\r\n", {400}, true},
      {"Version20", "9112 2.3", "GET /healthz HTTP/2.0\r\nHost: h\r\n\r\n", {505}, true},
      {"Version99", "9112 2.3", "GET /healthz HTTP/9.9\r\nHost: h\r\n\r\n", {400}, true},
      {"LowerCaseVersion", "9112 2.3", "GET /healthz http/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"OtherProtocol", "9112 2.3", "GET /healthz ICE/1.1\r\nHost: h\r\n\r\n", {400}, true},
      {"BareLineFeed", "9112 2.2", "GET /healthz HTTP/1.1\nHost: h\n\n", {400}, true},
      {"BareCarriageReturn", "9112 2.2", "GET /healthz HTTP/1.1\rHost: h\r\n\r\n", {400}, true},
      {"Http2PrefaceLater",
       "9113 3.4",
       std::string(kGet) + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
       {200, 400},
       true},
      {"PreludeOfThePreface", "9113 3.4", "PRI * HTTP/2.0\r\n\r\nSM\r\n\n", {400}, true},
      {"Tls", "9112 3", std::string("\x16\x03\x01\x02\x00\x01", 6), {400}, true},
      {"Connect", "9110 9.3.6", "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", {501}, true},
      {"AbsoluteTarget",
       "9112 3.2.2",
       "GET http://h/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
       {200},
       false},
      {"AbsoluteTargetUpperCase",
       "9112 3.2.2",
       "GET HTTP://H/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
       {200},
       false},
      {"AbsoluteTargetOfAnotherHost",
       "9112 3.2.2",
       "GET http://i/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
       {400},
       true},
      {"Query", "9112 3.2.1", "GET /healthz?a=b HTTP/1.1\r\nHost: h\r\n\r\n", {200}, false},
      {"Head", "9110 9.3.2", "HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n", {200}, false},
      {"Options",
       "9110 9.3.7",
       "OPTIONS /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nOrigin: http://o\r\n\r\n",
       {200},
       false},
      {"OptionsOfTheServer", "9110 9.3.7", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", {200}, false},
      {"OptionsWithoutOrigin",
       "9110 9.3.7",
       "OPTIONS /v1/models/m:predict HTTP/1.1\r\nHost: h\r\n\r\n",
       {400},
       false},

      // --- Host ---
      {"NoHost", "9112 3.2", Get(""), {400}, true},
      {"NoHostIn10", "9112 3.2", "GET /healthz HTTP/1.0\r\n\r\n", {200}, true},
      {"TwoHosts", "9112 3.2", Get("Host: h\r\nHost: h\r\n"), {400}, true},
      {"TwoHostsIn10",
       "9112 3.2",
       "GET /healthz HTTP/1.0\r\nHost: h\r\nHost: i\r\n\r\n",
       {400},
       true},
      {"EmptyHost", "9110 7.2", Get("Host:\r\n"), {200}, false},
      {"HostWithPort", "9110 7.2", Get("Host: h:80\r\n"), {200}, false},
      {"HostWithEmptyPort", "9110 7.2", Get("Host: h:\r\n"), {200}, false},
      {"HostWithBadPort", "9110 7.2", Get("Host: h:8a\r\n"), {400}, true},
      {"HostWithUser", "9110 7.2", Get("Host: u@h\r\n"), {400}, true},
      {"HostWithPath", "9110 7.2", Get("Host: h/p\r\n"), {400}, true},
      {"HostWithSpace", "9110 7.2", Get("Host: h i\r\n"), {400}, true},
      {"HostWithComma", "9110 7.2", Get("Host: h,i\r\n"), {200}, false},
      {"HostIpv6", "9110 7.2", Get("Host: [::1]:80\r\n"), {200}, false},
      {"HostIpv6Unclosed", "9110 7.2", Get("Host: [::1\r\n"), {400}, true},
      {"HostBadEscape", "9110 7.2", Get("Host: h%zz\r\n"), {400}, true},

      // --- headers ---
      {"SpaceBeforeColon", "9112 5.1", Get("Host: h\r\nA : b\r\n"), {400}, true},
      {"NoColon", "9112 5", Get("Host: h\r\nA\r\n"), {400}, true},
      {"EmptyName", "9112 5", Get("Host: h\r\n: b\r\n"), {400}, true},
      {"FoldedLine", "9112 5.2", Get("Host: h\r\nA: b\r\n c\r\n"), {200}, false},
      {"SpaceBeforeFirst", "9112 2.2", Get(" Host: h\r\n"), {400}, true},
      {"NulInValue", "9110 5.5", Get(std::string("Host: h\r\nA: b\0c\r\n", 17)), {400}, true},
      {"ControlInValue", "9110 5.5", Get("Host: h\r\nA: b\x01\r\n"), {400}, true},
      {"HighByteInValue", "9110 5.5", Get("Host: h\r\nA: \xff\r\n"), {200}, false},
      {"TabInValue", "9110 5.5", Get("Host: h\r\nA: b\tc\r\n"), {200}, false},
      {"BadCharacterInName", "9110 5.1", Get("Host: h\r\nA(: b\r\n"), {400}, true},
      {"EmptyValue", "9112 5", Get("Host: h\r\nA:\r\n"), {200}, false},
      {"SpacesAroundValue", "9112 5.1", Get("Host:  h  \r\n"), {200}, false},
      {"CarriageReturnInValue", "9110 5.5", Get("Host: h\r\nA: b\rc\r\n"), {400}, true},

      // --- Content-Length ---
      {"Body", "9112 6.2", whole, {200}, false},
      {"SameLengthTwice",
       "9112 6.3",
       Post(Length("17") + Length("17") + "\r\n" + kBody),
       {400},
       true},
      {"TwoLengths", "9112 6.3", Post(Length("17") + Length("18") + "\r\n" + kBody), {400}, true},
      {"LengthList", "9112 6.3", Post(Length("17, 17") + "\r\n" + kBody), {400}, true},
      {"NegativeLength", "9112 6.3", Post(Length("-1") + "\r\n" + kBody), {400}, true},
      {"SignedLength", "9112 6.3", Post(Length("+17") + "\r\n" + kBody), {400}, true},
      {"HexLength", "9112 6.3", Post(Length("0x11") + "\r\n" + kBody), {400}, true},
      {"EmptyLength", "9112 6.3", Post(Length("") + "\r\n" + kBody), {400}, true},
      {"LengthOf65Bits", "9112 6.3", Post(Length("18446744073709551616") + "\r\n"), {400}, true},
      {"LengthTooLarge", "9110 15.5.14", Post(Length("99999999999") + "\r\n"), {413}, true},
      {"LengthZero", "9112 6.2", Post(Length("0") + "\r\n"), {400}, false},
      {"NoLength", "9112 6.3", Post("\r\n"), {400}, false},
      {"BodyOfGet",
       "9110 9.3.1",
       Get("Host: h\r\nContent-Length: 2\r\n") + "{}" + kGet,
       {200, 200},
       false},

      // --- Transfer-Encoding ---
      {"Chunks", "9112 7.1", Post(kChunked + chunks + "0\r\n\r\n"), {200}, false},
      {"SmallChunks",
       "9112 7.1",
       Post(std::string(kChunked) + "1\r\n{\r\n10\r\n\"instances\":[1]}\r\n0\r\n\r\n"),
       {200},
       false},
      {"ChunkedUpperCase",
       "9112 7",
       Post("Transfer-Encoding: CHUNKED\r\n\r\n" + chunks + "0\r\n\r\n"),
       {200},
       false},
      {"LeadingZeros",
       "9112 7.1",
       Post(std::string(kChunked) + "0011\r\n" + kBody + "\r\n0\r\n\r\n"),
       {200},
       false},
      {"ChunkExtension",
       "9112 7.1.1",
       Post(std::string(kChunked) + "11;a=b\r\n" + kBody + "\r\n0\r\n\r\n"),
       {200},
       false},
      {"Trailers", "9112 7.1.2", Post(kChunked + chunks + "0\r\nA: b\r\n\r\n"), {200}, false},
      {"TrailerIsNoHeader",
       "9110 6.5.1",
       Post(kChunked + chunks + "0\r\nContent-Encoding: gzip\r\n\r\n"),
       {200},
       false},
      {"ChunkedAndLength",
       "9112 6.3",
       Post(Length("17") + kChunked + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"LengthAfterChunked",
       "9112 6.3",
       Post("Transfer-Encoding: chunked\r\n" + Length("17") + "\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"OtherEncoding",
       "9112 6.1",
       Post("Transfer-Encoding: gzip\r\n\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"EncodingBeforeChunked",
       "9112 6.1",
       Post("Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"ChunkedTwice",
       "9112 6.1",
       Post("Transfer-Encoding: chunked, chunked\r\n\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"TwoEncodingHeaders",
       "9112 6.1",
       Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks +
            "0\r\n\r\n"),
       {400},
       true},
      {"EncodingAfterChunked",
       "9112 6.1",
       Post("Transfer-Encoding: chunked, identity\r\n\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"Xchunked",
       "9112 6.1",
       Post("Transfer-Encoding: xchunked\r\n\r\n" + chunks + "0\r\n\r\n"),
       {400},
       true},
      {"ChunkedIn10",
       "9112 6.1",
       "POST /v1/models/m:predict HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks +
           "0\r\n\r\n",
       {400},
       true},
      {"BadChunkSize", "9112 7.1", Post(std::string(kChunked) + "zz\r\n"), {400}, true},
      {"SignedChunkSize", "9112 7.1", Post(std::string(kChunked) + "-1\r\n"), {400}, true},
      {"ChunkSizeOf65Bits",
       "9112 7.1",
       Post(std::string(kChunked) + "11111111111111111\r\n"),
       {400},
       true},
      {"ChunkLongerThanItsSize",
       "9112 7.1",
       Post(std::string(kChunked) + "1\r\n{}\r\n"),
       {400},
       true},
      {"ChunkSizeWithLineFeed",
       "9112 7.1",
       Post(std::string(kChunked) + "11\n" + kBody + "\r\n0\r\n\r\n"),
       {400},
       true},
      {"SpaceBeforeChunkSize",
       "9112 7.1",
       Post(std::string(kChunked) + " 11\r\n" + kBody + "\r\n0\r\n\r\n"),
       {400},
       true},

      // --- connections ---
      {"Close", "9112 9.6", Get("Host: h\r\nConnection: close\r\n"), {200}, true},
      {"CloseInList", "9112 9.6", Get("Host: h\r\nConnection: a, close\r\n"), {200}, true},
      {"KeepAliveIn10",
       "9112 9.3",
       "GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
       {200},
       false},
      {"Pipelined", "9112 9.3.2", std::string(kGet) + whole + kGet, {200, 200, 200}, false},
      {"PipelinedAfterClose",
       "9112 9.6",
       Get("Host: h\r\nConnection: close\r\n") + kGet,
       {200},
       true},
      {"BadAfterGood", "9112 9.3.2", whole + "zz\r\n\r\n", {200, 400}, true},
      {"Upgrade",
       "9110 7.8",
       Get("Host: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n") + kGet,
       {200, 200},
       false},
      {"UpgradeWithBody",
       "9110 7.8",
       Post("Connection: Upgrade\r\nUpgrade: websocket\r\n" + Length("17") + "\r\n" + kBody) + kGet,
       {200, 200},
       false},
      {"UpgradeWithChunks",
       "9110 7.8",
       Post("Connection: Upgrade\r\nUpgrade: h2c\r\n" + (kChunked + chunks) + "0\r\n\r\n") + kGet,
       {200, 200},
       false},
      {"UnknownExpectation", "9110 10.1.1", Get("Host: h\r\nExpect: something\r\n"), {200}, false},
  };
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

using Http1ConnectionTest = testing::HttpServerTest;

class Http1ConformanceTest : public testing::HttpServerTest,
                             public ::testing::WithParamInterface<Case> {
 protected:
  void Check(RawHttp1* client) {
    const bool is_head = GetParam().sent.compare(0, 4, "HEAD") == 0;
    for (const int status : GetParam().statuses) {
      const Http1Answer answer = client->Next(is_head);
      EXPECT_EQ(answer.status, status) << "RFC " << GetParam().section << ": " << answer.body;
    }
    if (HasFailure()) return;
    if (GetParam().is_closed) {
      EXPECT_TRUE(client->IsClosed()) << "RFC " << GetParam().section;
      return;
    }
    client->Send(kGet);
    EXPECT_EQ(client->Next().status, 200) << "RFC " << GetParam().section;
  }
};

TEST_P(Http1ConformanceTest, OnePieceIsAnswered) {
  Start();
  RawHttp1 client(port());
  client.Send(GetParam().sent);
  Check(&client);
}

TEST_P(Http1ConformanceTest, EachByteAloneIsAnsweredAlike) {
  Start();
  RawHttp1 client(port());
  client.SendEachByte(GetParam().sent);
  Check(&client);
}

TEST_F(Http1ConnectionTest, AClientOf10IsToldThatItsConnectionStays) {
  Start();
  RawHttp1 client(port());
  for (int i = 0; i < 2; ++i) {
    client.Send("GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(client.Next().Header("connection"), "keep-alive");
  }
  client.Send(kGet);
  EXPECT_EQ(client.Next().Header("connection"), "");
  client.Send("GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Next().Header("connection"), "close");
  EXPECT_TRUE(client.IsClosed());
}

INSTANTIATE_TEST_SUITE_P(Rfc9112, Http1ConformanceTest, ::testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace millpond::rpc
