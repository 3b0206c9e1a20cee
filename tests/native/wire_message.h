#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/wire_reader.h"

namespace millpond::testing {

// Protobuf bytes written field by field, invalid ones too, as any client may send them.
class WireMessage {
 public:
  const std::string& bytes() const { return bytes_; }

  WireMessage& RawVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  WireMessage& Raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  WireMessage& Tag(uint32_t field, int wire_type) {
    return RawVarint((uint64_t{field} << 3U) | static_cast<uint64_t>(wire_type));
  }
  WireMessage& Varint(uint32_t field, uint64_t value) { return Tag(field, 0).RawVarint(value); }
  WireMessage& Fixed64(uint32_t field, uint64_t value) { return Tag(field, 1).RawValue(value); }
  WireMessage& Fixed32(uint32_t field, uint32_t value) { return Tag(field, 5).RawValue(value); }
  WireMessage& Bytes(uint32_t field, std::string_view body) {
    return Tag(field, 2).RawVarint(body.size()).Raw(body);
  }
  WireMessage& Message(uint32_t field, const WireMessage& body) {
    return Bytes(field, body.bytes());
  }
  WireMessage& Group(uint32_t field, const WireMessage& body) {
    return Tag(field, 3).Raw(body.bytes()).Tag(field, 4);
  }
  template <typename T>
  WireMessage& RawValue(T value) {
    return Raw({reinterpret_cast<const char*>(&value), sizeof value});
  }

 private:
  std::string bytes_;
};

// The bytes of a message as the network delivers them: in segments, cut at `cuts` (ascending; a
// repeated cut makes an empty segment). Each segment is a block of its own size, so that
// AddressSanitizer detects a read past its end.
class SegmentedBytes {
 public:
  explicit SegmentedBytes(std::string_view bytes, const std::vector<size_t>& cuts = {}) {
    size_t begin = 0;
    for (const size_t cut : cuts) begin = AddBlock(bytes, begin, cut);
    AddBlock(bytes, begin, bytes.size());
    for (const auto& block : blocks_) segments_.emplace_back(block.data(), block.size());
  }
  SegmentedBytes(const SegmentedBytes&) = delete;
  SegmentedBytes& operator=(const SegmentedBytes&) = delete;

  base::WireReader reader() const { return {segments_.data(), segments_.size()}; }

 private:
  size_t AddBlock(std::string_view bytes, size_t begin, size_t end) {
    blocks_.emplace_back(bytes.begin() + begin, bytes.begin() + end);
    return end;
  }

  std::vector<std::vector<char>> blocks_;
  std::vector<std::string_view> segments_;
};

// Returns `bytes` with one to `change_count_max` bytes changed, left out, doubled or inserted.
inline std::string Mutate(std::string bytes, std::mt19937_64& rng, uint64_t change_count_max = 4) {
  for (uint64_t left = 1 + rng() % change_count_max; left > 0; --left) {
    const size_t at = bytes.empty() ? 0 : rng() % bytes.size();
    switch (bytes.empty() ? 3 : rng() % 5) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1U << (rng() % 8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(rng());
        break;
      case 2:
        bytes.erase(at, 1 + rng() % 4);
        break;
      case 3:
        bytes.insert(at, 1, static_cast<char>(rng()));
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + rng() % 8));
    }
  }
  return bytes;
}

}  // namespace millpond::testing
