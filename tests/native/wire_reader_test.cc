#include "native/base/wire_reader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/limits.h"
#include "tests/native/wire_message.h"
#include "tests/native/wire_transcript.h"

namespace millpond::base {
namespace {

using testing::SegmentedBytes;
using testing::Transcript;
using testing::WireMessage;

// One of each field, with varints of one, two, five and ten bytes.
std::string EveryField() {
  const WireMessage inner = WireMessage().Varint(1, 300).Fixed64(3, 1ULL << 63U).Bytes(5, "é");
  const WireMessage packed = WireMessage().RawVarint(0).RawVarint(UINT64_MAX).RawVarint(128);
  return WireMessage()
      .Varint(1, UINT64_MAX)
      .Fixed32(2, 0xFFFFFFFF)
      .Message(6, inner)
      .Message(7, packed)
      .Group(9, WireMessage().Varint(1, 7).Group(10, WireMessage().Fixed32(2, 1)).Bytes(3, "ab"))
      .Varint(1u << 28U, 1)
      .Bytes(4, std::string_view("\0x\xff", 3))
      .Bytes(6, "")
      .Fixed64(3, 2)
      .Bytes(5, "")
      .bytes();
}

TEST(WireReader, ReadsEveryKindOfField) {
  const std::string expected =
      "1=18446744073709551615;2=4294967295;{1=300;3=9223372036854775808;"
      "string é;}0,18446744073709551615,128,bytes " +
      std::string("\0x\xff", 3) + ";{}3=2;string ;";
  EXPECT_EQ(Transcript(EveryField()), expected);
}

TEST(WireReader, ReadsTheSameWhereverOneCutFalls) {
  const std::string message = EveryField();
  const std::string whole = Transcript(message);
  for (size_t cut = 0; cut <= message.size(); ++cut) EXPECT_EQ(Transcript(message, {cut}), whole);
}

TEST(WireReader, ReadsTheSameWhereverTwoCutsFall) {
  const std::string message = EveryField();
  const std::string whole = Transcript(message);
  for (size_t first = 0; first <= message.size(); ++first) {
    for (size_t second = first; second <= message.size(); ++second) {
      ASSERT_EQ(Transcript(message, {first, second}), whole) << first << " " << second;
    }
  }
}

TEST(WireReader, ReadsTheSameByteByByte) {
  const std::string message = EveryField();
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut <= message.size(); ++cut) cuts.insert(cuts.end(), {cut, cut, cut});
  EXPECT_EQ(Transcript(message, cuts), Transcript(message));
}

// Each of these is complete; cut short at any byte it is not.
TEST(WireReader, RefusesAFieldCutShortAtAnyByte) {
  const WireMessage fields[] = {
      WireMessage().Varint(1, UINT64_MAX),
      WireMessage().Fixed32(2, 1),
      WireMessage().Fixed64(3, 1),
      WireMessage().Bytes(4, "abcdefghijkl"),
      WireMessage().Bytes(5, std::string(200, 'a')),
      WireMessage().Message(6, WireMessage().Varint(1, 5)),
      WireMessage().Message(7, WireMessage().RawVarint(5).RawVarint(600)),
      WireMessage().Varint(20, 1000),
      WireMessage().Fixed32(20, 1),
      WireMessage().Fixed64(20, 1),
      WireMessage().Bytes(20, "abcdefghijkl"),
      WireMessage().Group(20, WireMessage().Varint(1, 5).Group(2, WireMessage().Bytes(3, "ab"))),
  };
  for (const WireMessage& field : fields) {
    const std::string& bytes = field.bytes();
    EXPECT_NE(Transcript(bytes), testing::kRefusedTranscript);
    for (size_t size = 1; size < bytes.size(); ++size) {
      for (size_t cut = 0; cut <= size; ++cut) {
        ASSERT_EQ(Transcript(bytes.substr(0, size), {cut}), testing::kRefusedTranscript)
            << size << " cut " << cut;
      }
    }
  }
}

// With bytes behind it the varint is read without bounds checks, without them byte by byte.
bool ReadsVarint(const std::string& bytes, size_t bytes_behind, uint64_t* value) {
  const SegmentedBytes segmented(bytes + std::string(bytes_behind, '\x01'));
  WireReader reader = segmented.reader();
  return reader.ReadVarint(value) && reader.remaining_bytes() == bytes_behind;
}

TEST(WireReader, ReadsVarintsUpToTenBytesAndRefusesEleven) {
  for (const size_t bytes_behind : {0, 5, 20}) {
    for (size_t size = 1; size <= 12; ++size) {
      uint64_t value = 0;
      const std::string overlong = "\x85" + std::string(size - 1, '\x80') + '\0';
      const bool is_read = ReadsVarint(overlong, bytes_behind, &value);
      EXPECT_EQ(is_read, size + 1 <= 10) << size + 1 << " bytes, " << bytes_behind << " behind";
      if (is_read) {
        EXPECT_EQ(value, 5);
      }
    }
  }
}

TEST(WireReader, DropsTheBitsOfATenthByteThatDoNotFitAsProtobufDoes) {
  for (const size_t bytes_behind : {0, 20}) {
    uint64_t value = 0;
    ASSERT_TRUE(ReadsVarint(std::string(9, '\xff') + '\x7f', bytes_behind, &value));
    EXPECT_EQ(value, UINT64_MAX);
    ASSERT_TRUE(ReadsVarint(std::string(9, '\x80') + '\x02', bytes_behind, &value));
    EXPECT_EQ(value, 0);
  }
}

bool ReadsTag(const std::string& bytes, WireTag* tag) {
  const SegmentedBytes segmented(bytes);
  WireReader reader = segmented.reader();
  return reader.ReadTag(tag);
}

TEST(WireReader, RefusesTagsOfField0AndOfWireTypes6And7) {
  WireTag tag;
  for (int wire_type = 0; wire_type < 8; ++wire_type) {
    EXPECT_FALSE(ReadsTag(WireMessage().Tag(0, wire_type).bytes(), &tag)) << wire_type;
    EXPECT_EQ(ReadsTag(WireMessage().Tag(5, wire_type).bytes(), &tag), wire_type < 6) << wire_type;
  }
}

TEST(WireReader, ReadsTheLargestFieldNumber) {
  constexpr uint32_t kLargest = (1U << 29U) - 1;
  WireTag tag;
  ASSERT_TRUE(ReadsTag(WireMessage().Tag(kLargest, 5).bytes(), &tag));
  EXPECT_EQ(tag.field, kLargest);
  EXPECT_EQ(tag.type, WireType::kFixed32);
}

TEST(WireReader, DropsTheBitsOfATagAbove32AsProtobufDoes) {
  WireTag tag;
  ASSERT_TRUE(ReadsTag(WireMessage().RawVarint(uint64_t{1} << 32U | 8U).bytes(), &tag));
  EXPECT_EQ(tag.field, 1);
  EXPECT_EQ(tag.type, WireType::kVarint);
  EXPECT_FALSE(ReadsTag(WireMessage().RawVarint(uint64_t{7} << 32U).bytes(), &tag));
}

TEST(WireReader, ReadsATagOfFiveBytesAndRefusesSix) {
  WireTag tag;
  ASSERT_TRUE(ReadsTag(std::string("\x88\x80\x80\x80\x00", 5), &tag));
  EXPECT_EQ(tag.field, 1);
  EXPECT_FALSE(ReadsTag(std::string("\x88\x80\x80\x80\x80\x00", 6), &tag));
}

TEST(WireReader, ReadsALengthOfFiveBytesAndRefusesSix) {
  for (const size_t size : {2, 4, 5, 6, 10}) {
    const std::string length = "\x83" + std::string(size - 2, '\x80') + '\0';
    const bool is_short = size <= 5;
    std::string text;
    WireReader field;
    const SegmentedBytes segmented(length + "abc");
    WireReader read = segmented.reader();
    EXPECT_EQ(read.ReadBytes(&text), is_short) << size;
    WireReader delimited = segmented.reader();
    EXPECT_EQ(delimited.ReadDelimited(&field), is_short) << size;
    WireReader skipped = segmented.reader();
    EXPECT_EQ(skipped.SkipField({1, WireType::kLengthDelimited}), is_short) << size;
  }
}

bool SkipsWhole(const std::string& bytes) {
  const SegmentedBytes segmented(bytes);
  WireReader reader = segmented.reader();
  WireTag tag;
  return reader.ReadTag(&tag) && reader.SkipField(tag) && reader.AtEnd();
}

WireMessage NestedGroups(int depth) {
  WireMessage groups;
  for (int level = 0; level < depth; ++level) groups.Tag(9, 3);
  for (int level = 0; level < depth; ++level) groups.Tag(9, 4);
  return groups;
}

TEST(WireReader, SkipsGroupsDownToTheDepthLimitAndRefusesDeeperOnes) {
  EXPECT_TRUE(SkipsWhole(NestedGroups(kMaxMessageDepth).bytes()));
  EXPECT_FALSE(SkipsWhole(NestedGroups(kMaxMessageDepth + 1).bytes()));
  EXPECT_FALSE(SkipsWhole(NestedGroups(1'000'000).bytes()));
}

TEST(WireReader, DepthIsOfNestingAndNotOfGroupsSideBySide) {
  WireMessage body;
  for (int group = 0; group < 1'000; ++group) body.Group(2, WireMessage());
  EXPECT_TRUE(SkipsWhole(WireMessage().Group(9, body).bytes()));
}

TEST(WireReader, RefusesUnbalancedGroups) {
  EXPECT_FALSE(SkipsWhole(WireMessage().Tag(9, 4).bytes()));
  EXPECT_FALSE(SkipsWhole(WireMessage().Tag(9, 3).bytes()));
  EXPECT_FALSE(SkipsWhole(WireMessage().Tag(9, 3).Tag(8, 4).bytes()));
  EXPECT_FALSE(SkipsWhole(WireMessage().Tag(9, 3).Tag(8, 3).Tag(9, 4).Tag(8, 4).bytes()));
}

TEST(WireReader, RefusesAGroupThatEndsBeyondTheMessageItBeganIn) {
  const std::string bytes =
      WireMessage().Bytes(6, WireMessage().Tag(9, 3).bytes()).Tag(9, 4).bytes();
  EXPECT_EQ(Transcript(bytes), testing::kRefusedTranscript);
}

TEST(WireReader, RefusesALengthBeyondTheMessageAndBeyond64Bits) {
  std::string text;
  for (const uint64_t length : {uint64_t{4}, uint64_t{1} << 32U, UINT64_MAX}) {
    const SegmentedBytes segmented(WireMessage().RawVarint(length).Raw("abc").bytes());
    WireReader reader = segmented.reader();
    WireReader bytes = reader;
    WireReader field;
    EXPECT_FALSE(reader.ReadDelimited(&field)) << length;
    EXPECT_FALSE(bytes.ReadBytes(&text)) << length;
  }
}

TEST(WireReader, ReaderOfAFieldEndsWithTheField) {
  const SegmentedBytes segmented(WireMessage().RawVarint(1).Raw("\x80\x01\x01").bytes());
  WireReader reader = segmented.reader();
  WireReader field;
  uint64_t value = 0;
  ASSERT_TRUE(reader.ReadDelimited(&field));
  EXPECT_FALSE(field.ReadVarint(&value));
  EXPECT_EQ(reader.remaining_bytes(), 2);
}

TEST(WireReader, ACopyIsACursorOfItsOwn) {
  const SegmentedBytes segmented("abcdef", {2, 4});
  WireReader reader = segmented.reader();
  WireReader copy = reader;
  char text[6] = {};
  ASSERT_TRUE(reader.Copy(text, 5));
  std::string rest;
  copy.AppendRest(&rest);
  EXPECT_EQ(rest, "abcdef");
  EXPECT_TRUE(copy.AtEnd());
  EXPECT_EQ(reader.remaining_bytes(), 1);
}

TEST(WireReader, CopyTakesNothingIfTooLittleIsLeft) {
  const SegmentedBytes segmented("abc", {1});
  WireReader reader = segmented.reader();
  char text[4] = {};
  EXPECT_FALSE(reader.Copy(text, 4));
  EXPECT_TRUE(reader.Copy(text, 0));
  EXPECT_TRUE(reader.Copy(text, 3));
  EXPECT_EQ(std::string_view(text, 3), "abc");
}

TEST(WireReader, IsAtItsEndWithoutSegmentsAndWithEmptyOnes) {
  EXPECT_TRUE(WireReader().AtEnd());
  EXPECT_TRUE(WireReader(nullptr, 0).AtEnd());
  EXPECT_TRUE(SegmentedBytes("", {0, 0}).reader().AtEnd());
}

struct Utf8Row {
  std::string_view text;
  bool is_valid;
};

// The edges of the Unicode standard's table 3-7, "Well-Formed UTF-8 Byte Sequences".
const Utf8Row kUtf8Rows[] = {
    {"", true},
    {std::string_view("\0", 1), true},
    {"\x7f", true},
    {"\x80", false},  // a continuation alone
    {"\xbf", false},
    {"\xc0\x80", false},  // overlong
    {"\xc1\xbf", false},
    {"\xc2\x80", true},
    {"\xc2\x7f", false},
    {"\xc2\xc0", false},
    {"\xc2", false},
    {"\xdf\xbf", true},
    {"\xe0\x9f\xbf", false},  // overlong
    {"\xe0\xa0\x80", true},
    {"\xe0\xa0", false},
    {"\xe1\x80\x80", true},
    {"\xe1\x80\x7f", false},
    {"\xec\xbf\xbf", true},
    {"\xed\x9f\xbf", true},
    {"\xed\xa0\x80", false},  // a surrogate
    {"\xed\xbf\xbf", false},
    {"\xee\x80\x80", true},
    {"\xef\xbf\xbf", true},
    {"\xf0\x8f\xbf\xbf", false},  // overlong
    {"\xf0\x90\x80\x80", true},
    {"\xf0\x90\x80", false},
    {"\xf0\x90\x80\xc0", false},
    {"\xf1\x80\x80\x80", true},
    {"\xf3\xbf\xbf\xbf", true},
    {"\xf4\x8f\xbf\xbf", true},
    {"\xf4\x90\x80\x80", false},  // past U+10FFFF
    {"\xf5\x80\x80\x80", false},
    {"\xff", false},
    {"a\xc3\xa9z", true},
    {"a\xc3z", false},
};

TEST(IsValidUtf8, FollowsTheTableOfTheUnicodeStandard) {
  for (const Utf8Row& row : kUtf8Rows) {
    EXPECT_EQ(IsValidUtf8(row.text), row.is_valid) << ::testing::PrintToString(row.text);
  }
}

TEST(WireReader, ReadStringRefusesBrokenUtf8ReadBytesTakesIt) {
  for (const Utf8Row& row : kUtf8Rows) {
    const SegmentedBytes segmented(WireMessage().RawVarint(row.text.size()).Raw(row.text).bytes());
    WireReader strings = segmented.reader();
    WireReader bytes = segmented.reader();
    std::string text;
    EXPECT_EQ(strings.ReadString(&text), row.is_valid) << ::testing::PrintToString(row.text);
    ASSERT_TRUE(bytes.ReadBytes(&text));
    EXPECT_EQ(text, row.text);
  }
}

}  // namespace
}  // namespace millpond::base
