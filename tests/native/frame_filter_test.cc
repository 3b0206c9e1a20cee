#include "native/rpc/frame_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/native/raw_http2.h"

namespace millpond::rpc {
namespace {

using testing::BigEndian;
using testing::FrameBytes;

// Feeds `bytes` in pieces of `piece_bytes`, and returns the bytes that the filter leaves.
std::string Filtered(const std::string& bytes, size_t piece_bytes) {
  FrameFilter filter;
  std::string left;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    const std::string piece = bytes.substr(at, piece_bytes);
    EXPECT_TRUE(filter.Filter(piece, [&](std::string_view part) {
      left += part;
      return true;
    }));
  }
  return left;
}

const std::string kReset = BigEndian(8);

TEST(FrameFilterTest, ResetOfAnUnopenedStreamIsRemoved) {
  const std::string reset = FrameBytes(3, 0, 5, kReset);
  const std::string other = FrameBytes(1, 4, 7, "headers") + FrameBytes(0, 1, 7, "data");
  for (size_t piece_bytes = 1; piece_bytes < 40; ++piece_bytes) {
    EXPECT_EQ(Filtered(reset + other, piece_bytes), other) << piece_bytes;
    EXPECT_EQ(Filtered(reset, piece_bytes), "") << piece_bytes;
  }
}

TEST(FrameFilterTest, ResetOfAnOpenedStreamStays) {
  const std::string bytes = FrameBytes(1, 4, 5, "headers") + FrameBytes(3, 0, 5, kReset);
  for (size_t piece_bytes = 1; piece_bytes < 40; ++piece_bytes) {
    EXPECT_EQ(Filtered(bytes, piece_bytes), bytes) << piece_bytes;
  }
}

TEST(FrameFilterTest, MalformedResetsStayForTheParser) {
  for (const std::string& bytes : {FrameBytes(3, 0, 5, "abc"), FrameBytes(3, 0, 0, kReset),
                                   FrameBytes(3, 0, 6, kReset), FrameBytes(3, 0, 5, "")}) {
    EXPECT_EQ(Filtered(bytes, 5), bytes);
  }
}

TEST(FrameFilterTest, ItStopsWhenTheFeedFails) {
  FrameFilter filter;
  int count = 0;
  const std::string bytes = FrameBytes(3, 0, 5, kReset) + FrameBytes(0, 0, 7, "x");
  EXPECT_FALSE(filter.Filter(bytes, [&](std::string_view) {
    count += 1;
    return false;
  }));
  EXPECT_EQ(count, 1);
}

TEST(FrameFilterTest, RandomFramesLoseOnlyStrayResets) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t bound) { return random() % bound; };
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    std::string expected;
    uint32_t last = 0;
    for (int i = 0; i < 20; ++i) {
      const uint8_t type = static_cast<uint8_t>(below(10));
      const uint32_t stream = below(40);
      const std::string payload = type == 3 ? kReset : std::string(below(30), 'p');
      const std::string frame = FrameBytes(type, 0, stream, payload);
      bytes += frame;
      if (type == 1) last = std::max(last, stream);
      if (type != 3 || stream % 2 == 0 || stream <= last) expected += frame;
    }
    EXPECT_EQ(Filtered(bytes, 1 + below(50)), expected);
  }
}

}  // namespace
}  // namespace millpond::rpc
