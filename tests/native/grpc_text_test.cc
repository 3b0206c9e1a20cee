#include "native/rpc/grpc_text.h"

#include <gtest/gtest.h>

namespace millpond::rpc {
namespace {

TEST(ParseTimeout, EachUnitHasItsLength) {
  EXPECT_EQ(ParseTimeout("1H"), 3'600'000'000'000);
  EXPECT_EQ(ParseTimeout("2M"), 120'000'000'000);
  EXPECT_EQ(ParseTimeout("3S"), 3'000'000'000);
  EXPECT_EQ(ParseTimeout("250m"), 250'000'000);
  EXPECT_EQ(ParseTimeout("7u"), 7'000);
  EXPECT_EQ(ParseTimeout("99999999n"), 99'999'999);
  EXPECT_EQ(ParseTimeout("0S"), 0);
}

TEST(ParseTimeout, LongTimeoutIsCutToThirtyYears) {
  EXPECT_EQ(ParseTimeout("99999999H"), 1'000'000'000'000'000'000);
}

TEST(ParseTimeout, OtherTextIsNoTimeout) {
  for (const char* const text : {"", "S", "1", "1s", "-1S", " 1S", "1.5S", "123456789S"}) {
    EXPECT_EQ(ParseTimeout(text), std::nullopt) << text;
  }
}

TEST(PercentEncode, OnlyPrintableAsciiGoesAsItIs) {
  EXPECT_EQ(PercentEncode("plain text, ~ and !"), "plain text, ~ and !");
  EXPECT_EQ(PercentEncode("50%\n\xc3\xa4"), "50%25%0A%C3%A4");
  EXPECT_EQ(PercentEncode(""), "");
}

TEST(IsGrpcContentType, SuffixAndParametersAreAllowed) {
  EXPECT_TRUE(IsGrpcContentType("application/grpc"));
  EXPECT_TRUE(IsGrpcContentType("application/grpc+proto"));
  EXPECT_TRUE(IsGrpcContentType("application/grpc;charset=utf-8"));
  EXPECT_FALSE(IsGrpcContentType("application/grpc-web"));
  EXPECT_FALSE(IsGrpcContentType("application/json"));
  EXPECT_FALSE(IsGrpcContentType(""));
}

TEST(ListContains, ElementsMayHaveSpacesAround) {
  EXPECT_TRUE(ListContains("identity, deflate , gzip", "gzip"));
  EXPECT_TRUE(ListContains("identity, deflate , gzip", "deflate"));
  EXPECT_TRUE(ListContains("gzip", "gzip"));
  EXPECT_FALSE(ListContains("identity,gzipped", "gzip"));
  EXPECT_FALSE(ListContains("", "gzip"));
}

}  // namespace
}  // namespace millpond::rpc
