#include "native/base/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace millpond::base {
namespace {

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Header(const std::string& version, const std::string& flags,
                   const std::string& rest = "") {
  return version + "-" + kTraceId + "-" + kParentId + "-" + flags + rest;
}

TEST(ParseTraceparent, ReadsTheIdsAndWhetherItIsSampled) {
  const auto sampled = ParseTraceparent(Header("00", "01"));
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->trace_id, kTraceId);
  EXPECT_EQ(sampled->parent_id, kParentId);
  EXPECT_TRUE(sampled->is_sampled);
  const auto unsampled = ParseTraceparent(Header("00", "00"));
  ASSERT_TRUE(unsampled);
  EXPECT_FALSE(unsampled->is_sampled);
}

// The other bits belong to flags that this parser does not have.
TEST(ParseTraceparent, OfTheFlagsTheLowestBitSamples) {
  EXPECT_TRUE(ParseTraceparent(Header("00", "ff"))->is_sampled);
  EXPECT_TRUE(ParseTraceparent(Header("00", "09"))->is_sampled);
  EXPECT_TRUE(ParseTraceparent(Header("00", "ab"))->is_sampled);
  EXPECT_FALSE(ParseTraceparent(Header("00", "fe"))->is_sampled);
  EXPECT_FALSE(ParseTraceparent(Header("00", "10"))->is_sampled);
}

TEST(ParseTraceparent, ALaterVersionMaySayMoreAndThisOneMayNot) {
  EXPECT_TRUE(ParseTraceparent(Header("01", "01")));
  EXPECT_TRUE(ParseTraceparent(Header("cc", "01", "-what-the-future-will-be-like")));
  EXPECT_FALSE(ParseTraceparent(Header("cc", "01", ".what")));
  EXPECT_FALSE(ParseTraceparent(Header("00", "01", "-more")));
  EXPECT_FALSE(ParseTraceparent(Header("ff", "01")));
}

TEST(ParseTraceparent, InvalidHeadersYieldNoTrace) {
  const std::string sound = Header("00", "01");
  for (size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(ParseTraceparent(sound.substr(0, size))) << size;
    std::string broken = sound;
    broken[size] = 'X';
    EXPECT_FALSE(ParseTraceparent(broken)) << broken;
  }
  std::string upper = sound;
  upper[4] = 'B';
  EXPECT_FALSE(ParseTraceparent(upper));
  EXPECT_FALSE(ParseTraceparent("00-" + std::string(32, '0') + "-" + kParentId + "-01"));
  EXPECT_FALSE(
      ParseTraceparent(std::string("00-") + kTraceId + "-" + std::string(16, '0') + "-01"));
}

}  // namespace
}  // namespace millpond::base
