#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millpond::base {

// The wire types of https://protobuf.dev/programming-guides/encoding/. The types 6 and 7 do not
// exist.
enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

struct WireTag {
  uint32_t field = 0;
  WireType type = WireType::kVarint;
};

// A cursor over one protobuf message whose bytes lie in one or more segments, like a received gRPC
// message. It exists so that a tensor's content reaches the tensor from the network's buffers with
// one copy. A generated message would hold another copy in between.
//
// Borrows the array of segments and the bytes. Both must outlive the reader and every reader made
// from it. A copy is an independent cursor. Every Read* returns false if the bytes are not valid
// protobuf; the cursor must not be used after that. The reader accepts and refuses the same bytes
// as protobuf's C++ parser, which TensorFlow has. (The parser of gRPC's Python clients, upb, is
// stricter about bytes that no encoder writes, for example a tag above 32 bits.)
class WireReader {
 public:
  WireReader() = default;
  WireReader(const std::string_view* segments, size_t segment_count);

  size_t remaining_bytes() const { return remaining_bytes_; }
  bool AtEnd() const { return remaining_bytes_ == 0; }

  [[nodiscard]] bool ReadTag(WireTag* tag);
  [[nodiscard]] bool ReadVarint(uint64_t* value) {
    // Needs no bounds check if the segment goes on past the longest varint. Packed ids are decoded
    // here, thousands a request.
    if (contiguous_bytes() > kMaxVarintBytes) return ReadVarintWithinSegment(value);
    return ReadVarintAcrossSegments(value);
  }
  [[nodiscard]] bool ReadFixed32(uint32_t* value) { return Copy(value, sizeof *value); }
  [[nodiscard]] bool ReadFixed64(uint64_t* value) { return Copy(value, sizeof *value); }

  // Reads a length-delimited field: makes `field` a cursor over its bytes, and moves past it.
  [[nodiscard]] bool ReadDelimited(WireReader* field);
  // Reads a `bytes` field.
  [[nodiscard]] bool ReadBytes(std::string* value);
  // Reads a proto3 `string` field. Returns false if it is not UTF-8.
  [[nodiscard]] bool ReadString(std::string* value);

  // Copies the next `size` bytes to `to`, and moves past them.
  [[nodiscard]] bool Copy(void* to, size_t size);
  // Returns the remaining bytes if they lie in one piece.
  std::optional<std::string_view> Contiguous() const {
    if (remaining_bytes_ > contiguous_bytes()) return {};
    return std::string_view(position_, remaining_bytes_);
  }
  // Appends all remaining bytes to `to`.
  void AppendRest(std::string* to);
  // Moves past a field that the message does not have, groups included.
  [[nodiscard]] bool SkipField(WireTag tag);

 private:
  static constexpr size_t kMaxVarintBytes = 10;

  // The bytes that can be read at position_ without a step to the next segment.
  size_t contiguous_bytes() const {
    const auto left = static_cast<size_t>(segment_end_ - position_);
    return left < remaining_bytes_ ? left : remaining_bytes_;
  }
  bool ReadShortVarint(uint64_t* value);
  // Reads the length of a field. Returns false if the message has fewer bytes left.
  bool ReadLength(uint64_t* bytes);
  bool ReadVarintWithinSegment(uint64_t* value);
  bool ReadVarintAcrossSegments(uint64_t* value);
  void Advance(size_t size);
  bool Skip(size_t size);
  bool SkipGroup(uint32_t field, int depth);
  bool SkipField(WireTag tag, int depth);

  const char* position_ = nullptr;
  const char* segment_end_ = nullptr;
  const std::string_view* next_segment_ = nullptr;
  size_t remaining_bytes_ = 0;
};

bool IsValidUtf8(std::string_view text);

}  // namespace millpond::base
