#include "native/rest/content_coding.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

namespace millpond::rest {
namespace {

using base::Code;

constexpr size_t kEnough = 1'000'000;
constexpr int kZlib = 15;
constexpr int kRaw = -15;

std::string Deflated(const std::string& body, int window_bits) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string coded(deflateBound(&stream, body.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());
  stream.next_out = reinterpret_cast<Bytef*>(coded.data());
  stream.avail_out = static_cast<uInt>(coded.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  coded.resize(stream.total_out);
  deflateEnd(&stream);
  return coded;
}

std::string Body() {
  std::string body;
  for (int i = 0; i < 20'000; ++i) body += std::to_string(i) + ",";
  return body;
}

std::string Gzipped(const std::string& body) {
  auto coded = Gzip(body, {});
  EXPECT_TRUE(coded.ok());
  return coded.ok() ? std::string(coded.value().view()) : "";
}

TEST(ContentCoding, ReadsEveryFormatThatClientsSend) {
  for (const std::string& body : {std::string(), std::string("x"), Body()}) {
    std::string inflated;
    ASSERT_TRUE(Inflate(ContentCoding::kGzip, Gzipped(body), kEnough, &inflated).ok());
    EXPECT_TRUE(inflated == body);
    ASSERT_TRUE(Inflate(ContentCoding::kDeflate, Deflated(body, kZlib), kEnough, &inflated).ok());
    EXPECT_TRUE(inflated == body);
    ASSERT_TRUE(Inflate(ContentCoding::kDeflate, Deflated(body, kRaw), kEnough, &inflated).ok());
    EXPECT_TRUE(inflated == body);
    ASSERT_TRUE(Inflate(ContentCoding::kIdentity, body, kEnough, &inflated).ok());
    EXPECT_TRUE(inflated == body);
  }
}

TEST(ContentCoding, SeveralMembersOfGzipAreOneBody) {
  std::string inflated;
  ASSERT_TRUE(
      Inflate(ContentCoding::kGzip, Gzipped("ab") + Gzipped("") + Gzipped("c"), 10, &inflated)
          .ok());
  EXPECT_EQ(inflated, "abc");
}

TEST(ContentCoding, ABodyOfTheLimitIsTakenAndOneAboveItRefused) {
  const std::string body = Body();
  std::string inflated;
  for (const ContentCoding coding : {ContentCoding::kGzip, ContentCoding::kIdentity}) {
    const std::string coded = coding == ContentCoding::kGzip ? Gzipped(body) : body;
    EXPECT_TRUE(Inflate(coding, coded, body.size(), &inflated).ok());
    EXPECT_TRUE(inflated == body);
    EXPECT_EQ(Inflate(coding, coded, body.size() - 1, &inflated).code(), Code::kResourceExhausted);
  }
  EXPECT_TRUE(Inflate(ContentCoding::kGzip, Gzipped(""), 0, &inflated).ok());
  EXPECT_EQ(Inflate(ContentCoding::kGzip, Gzipped("x"), 0, &inflated).code(),
            Code::kResourceExhausted);
}

TEST(ContentCoding, ABombTakesNoMoreThanTheLimit) {
  const std::string bomb = Gzipped(std::string(100'000'000, '0'));
  std::string inflated;
  EXPECT_EQ(Inflate(ContentCoding::kGzip, bomb, 100'000, &inflated).code(),
            Code::kResourceExhausted);
  EXPECT_LE(inflated.capacity(), 200'002);
}

TEST(ContentCoding, TruncatedChangedOrTrailingBytesAreRefused) {
  const std::string body = Body();
  std::string inflated;
  for (const std::string& coded : {Gzipped(body), Gzipped("x")}) {
    for (const size_t length :
         {size_t{0}, size_t{1}, size_t{5}, coded.size() / 2, coded.size() - 1}) {
      EXPECT_EQ(Inflate(ContentCoding::kGzip, coded.substr(0, length), kEnough, &inflated).code(),
                Code::kInvalidArgument);
    }
    EXPECT_EQ(Inflate(ContentCoding::kGzip, coded + "x", kEnough, &inflated).code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(Inflate(ContentCoding::kDeflate, Deflated("x", kZlib) + "x", kEnough, &inflated).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Inflate(ContentCoding::kGzip, body, kEnough, &inflated).code(), Code::kInvalidArgument);
}

TEST(ContentCoding, HeadersAreReadInAnyCase) {
  EXPECT_EQ(ParseContentCoding("").value(), ContentCoding::kIdentity);
  EXPECT_EQ(ParseContentCoding(" identity").value(), ContentCoding::kIdentity);
  EXPECT_EQ(ParseContentCoding("GZip").value(), ContentCoding::kGzip);
  EXPECT_EQ(ParseContentCoding("x-gzip").value(), ContentCoding::kGzip);
  EXPECT_EQ(ParseContentCoding("deflate ").value(), ContentCoding::kDeflate);
  EXPECT_EQ(ParseContentCoding("br").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseContentCoding("gzip, gzip").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::rest
