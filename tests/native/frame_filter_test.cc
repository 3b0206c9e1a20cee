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
    EXPECT_TRUE(filter.Filter(
        piece,
        [&](std::string_view part) {
          left += part;
          return true;
        },
        [](unsigned, int32_t) {}));
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

TEST(FrameFilterTest, StrayFramesAreReportedInOrder) {
  const std::string known = FrameBytes(1, 4, 7, "headers");
  const std::string unknown = FrameBytes(10, 0, 7, "bytes");
  const std::string empty = FrameBytes(0, 1, 7, "");
  const std::string bytes = known + FrameBytes(3, 0, 9, kReset) + known + unknown + known + empty;
  for (size_t piece_bytes = 1; piece_bytes < 80; ++piece_bytes) {
    FrameFilter filter;
    std::string seen;
    for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
      EXPECT_TRUE(filter.Filter(
          std::string_view(bytes).substr(at, piece_bytes),
          [&](std::string_view part) {
            seen += part;
            return true;
          },
          [&](unsigned type, int32_t stream) {
            seen += '!' + std::to_string(type) + ' ' + std::to_string(stream) + '!';
          }));
    }
    EXPECT_EQ(seen, known + "!3 9!" + known + "!10 7!" + unknown + known + "!0 7!" + empty)
        << piece_bytes;
  }
}

TEST(FrameFilterTest, AHeadLastsUntilItsLastFrameIsComplete) {
  FrameFilter filter;
  const std::string bytes = FrameBytes(0, 0, 5, "x") + FrameBytes(1, 0, 7, "a") +
                            FrameBytes(9, 0, 7, "") + FrameBytes(9, 4, 7, "b") +
                            FrameBytes(0, 4, 5, "x") + FrameBytes(1, 4, 9, "");
  std::string in_head;
  for (const char byte : bytes) {
    filter.Filter(
        {&byte, 1}, [](std::string_view) { return true; }, [](unsigned, int32_t) {});
    in_head += filter.is_in_head() ? '1' : '0';
  }
  const std::string first_head = std::string(8, '0') + std::string(1 + 1 + 9 + 9, '1') + "0";
  EXPECT_EQ(in_head, std::string(10, '0') + first_head + std::string(10 + 9, '0'));
  EXPECT_EQ(filter.head_count(), 2);
}

TEST(FrameFilterTest, ItStopsWhenTheFeedFails) {
  FrameFilter filter;
  int count = 0;
  const std::string bytes = FrameBytes(3, 0, 5, kReset) + FrameBytes(0, 0, 7, "x");
  EXPECT_FALSE(filter.Filter(
      bytes,
      [&](std::string_view) {
        count += 1;
        return false;
      },
      [](unsigned, int32_t) {}));
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
