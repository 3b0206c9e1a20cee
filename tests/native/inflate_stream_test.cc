#include "native/base/inflate_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace millpond::base {
namespace {

using State = InflateStream::State;

// zlib's stream of "abc" alone.
std::string ZlibOfAbc() {
  std::string stream(compressBound(3), '\0');
  uLongf size = stream.size();
  EXPECT_EQ(compress(reinterpret_cast<Bytef*>(stream.data()), &size,
                     reinterpret_cast<const Bytef*>("abc"), 3),
            Z_OK);
  stream.resize(size);
  return stream;
}

TEST(InflateStreamTest, ConsumesItsStreamAndLeavesTheRest) {
  const std::string bytes = ZlibOfAbc() + "rest";
  std::string_view input = bytes;
  InflateStream stream(DeflateFormat::kZlib);
  ASSERT_TRUE(stream.is_made());
  char output[16];
  size_t written_bytes = 0;
  EXPECT_EQ(stream.Inflate(&input, output, sizeof(output), &written_bytes), State::kHasEnded);
  EXPECT_EQ(std::string(output, written_bytes), "abc");
  EXPECT_EQ(input, "rest");
}

TEST(InflateStreamTest, WithoutInputOrRoomItGoesOnOnceThereIsSome) {
  const std::string bytes = ZlibOfAbc();
  std::string_view input = bytes;
  InflateStream stream(DeflateFormat::kZlib);
  std::string text;
  State state = State::kGoesOn;
  std::string_view nothing;
  size_t written_bytes = 0;
  char output = 0;
  EXPECT_EQ(stream.Inflate(&nothing, &output, 1, &written_bytes), State::kGoesOn);
  while (state == State::kGoesOn && text.size() < 4) {
    state = stream.Inflate(&input, &output, 1, &written_bytes);
    text.append(&output, written_bytes);
  }
  EXPECT_EQ(state, State::kHasEnded);
  EXPECT_EQ(text, "abc");
}

TEST(InflateStreamTest, AnotherFormatIsBrokenAndAResetBeginsAnew) {
  const std::string bytes = ZlibOfAbc();
  char output[16];
  size_t written_bytes = 0;
  std::string_view input = bytes;
  InflateStream gzip(DeflateFormat::kGzip);
  EXPECT_EQ(gzip.Inflate(&input, output, sizeof(output), &written_bytes), State::kIsBroken);
  InflateStream zlib(DeflateFormat::kZlib);
  for (int round = 0; round < 2; ++round) {
    input = bytes;
    EXPECT_EQ(zlib.Inflate(&input, output, sizeof(output), &written_bytes), State::kHasEnded);
    EXPECT_EQ(written_bytes, 3);
    zlib.Reset();
  }
}

}  // namespace
}  // namespace millpond::base
