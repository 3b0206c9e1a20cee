#include "native/base/wire_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/base/wire_reader.h"
#include "tests/native/wire_message.h"

namespace millpond::base {
namespace {

using testing::SegmentedBytes;
using testing::WireMessage;

// Each power of two with its neighbours: all edges between lengths of varints are among them.
std::vector<uint64_t> EdgeValues() {
  std::vector<uint64_t> values = {0, UINT64_MAX};
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << static_cast<unsigned>(bit);
    values.insert(values.end(), {power - 1, power, power + 1});
  }
  return values;
}

TEST(WireWriter, WritesVarintBytesBytesOfAVarint) {
  for (const uint64_t value : EdgeValues()) {
    char buffer[10] = {};
    WireWriter writer(buffer);
    writer.Varint(value);
    EXPECT_EQ(writer.position() - buffer, VarintBytes(value)) << value;
  }
}

TEST(WireWriter, VarintsReadBackAsTheValuesWritten) {
  for (const uint64_t value : EdgeValues()) {
    std::string bytes(VarintBytes(value), '\0');
    WireWriter(bytes.data()).Varint(value);
    const SegmentedBytes segmented(bytes);
    WireReader reader = segmented.reader();
    uint64_t read = 0;
    ASSERT_TRUE(reader.ReadVarint(&read));
    EXPECT_EQ(read, value);
    EXPECT_TRUE(reader.AtEnd());
  }
}

TEST(WireWriter, FieldsTakeTheBytesThatTheSizeFunctionsSay) {
  for (const uint32_t field : {1U, 15U, 16U, 2047U, 2048U, (1U << 29U) - 1}) {
    for (const size_t body_bytes : {0, 1, 127, 128, 20'000}) {
      const std::string body(body_bytes, 'x');
      std::string bytes(DelimitedBytes(field, body_bytes) + TagBytes(field) + VarintBytes(300),
                        '\0');
      WireWriter writer(bytes.data());
      writer.BytesField(field, body);
      writer.VarintField(field, 300);
      EXPECT_EQ(writer.position() - bytes.data(), bytes.size());
      EXPECT_EQ(bytes, WireMessage().Bytes(field, body).Varint(field, 300).bytes());
    }
  }
}

TEST(WireWriter, WritesNoBytesFromANullPointer) {
  char buffer[1] = {'x'};
  WireWriter writer(buffer);
  writer.Bytes(nullptr, 0);
  EXPECT_EQ(writer.position(), buffer);
}

}  // namespace
}  // namespace millpond::base
