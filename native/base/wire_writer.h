#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "native/base/bit_width.h"
#include "native/base/wire_reader.h"

namespace millpond::base {

// Returns the length of the varint of `value`: 1 to 10 bytes.
inline size_t VarintBytes(uint64_t value) {
  // A byte holds seven bits; `| 1` gives 0 its one byte.
  const int bits = BitWidth(value | 1);
  return static_cast<size_t>((bits + 6) / 7);
}

inline size_t TagBytes(uint32_t field) { return VarintBytes(uint64_t{field} << 3U); }

// Returns the length of a length-delimited field with a body of `body_bytes`, tag and length
// included.
inline size_t DelimitedBytes(uint32_t field, size_t body_bytes) {
  return TagBytes(field) + VarintBytes(body_bytes) + body_bytes;
}

// Writes protobuf's wire format into memory that the caller has sized beforehand. So a reply is
// laid out once, in the buffer that goes to the network. Checks no bounds: the size functions above
// are the contract, and PredictCodec's tests compare the two.
class WireWriter {
 public:
  explicit WireWriter(char* to) : position_(to) {}

  char* position() const { return position_; }

  void Varint(uint64_t value) {
    while (value >= 0x80) {
      *position_++ = static_cast<char>(value | 0x80);
      value >>= 7U;
    }
    *position_++ = static_cast<char>(value);
  }
  void Tag(uint32_t field, WireType type) {
    Varint((uint64_t{field} << 3U) | static_cast<uint64_t>(type));
  }
  // Writes the head of a length-delimited field. The caller writes its body of `body_bytes` next.
  void Delimited(uint32_t field, size_t body_bytes) {
    Tag(field, WireType::kLengthDelimited);
    Varint(body_bytes);
  }
  void Bytes(const void* from, size_t size) {
    if (size == 0) return;  // memcpy takes no null pointer, even if the size is 0
    std::memcpy(position_, from, size);
    position_ += size;
  }
  void BytesField(uint32_t field, std::string_view body) {
    Delimited(field, body.size());
    Bytes(body.data(), body.size());
  }
  void VarintField(uint32_t field, uint64_t value) {
    Tag(field, WireType::kVarint);
    Varint(value);
  }

 private:
  char* position_;
};

}  // namespace millpond::base
