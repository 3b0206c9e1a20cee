#include "native/base/wire_reader.h"

#include <algorithm>
#include <cstring>

#include "native/base/limits.h"

namespace millpond::base {
namespace {

// The longest tag, and the longest length of a field, that protobuf's C++ parser reads (ReadTag and
// ReadSize in its parse_context.h). Shorter ones may be padded up to it.
constexpr size_t kMaxShortVarintBytes = 5;
constexpr uint32_t kTagTypeBits = 3;

bool IsContinuation(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

// Returns the length of the UTF-8 sequence at `text`, or 0 if it is invalid. The ranges of the
// second byte are those of the Unicode standard, table 3-7. They exclude overlong forms, surrogates
// and code points above U+10FFFF.
size_t SequenceBytes(const unsigned char* text, size_t size) {
  const unsigned char first = text[0];
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size < length) return 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (text[1] < low || text[1] > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  return length;
}

}  // namespace

WireReader::WireReader(const std::string_view* segments, size_t segment_count)
    : next_segment_(segments) {
  for (size_t i = 0; i < segment_count; ++i) remaining_bytes_ += segments[i].size();
  Advance(0);
}

// Keeps the invariant: position_ < segment_end_ while bytes remain.
void WireReader::Advance(size_t size) {
  position_ += size;
  remaining_bytes_ -= size;
  while (position_ == segment_end_ && remaining_bytes_ > 0) {
    position_ = next_segment_->data();
    segment_end_ = position_ + next_segment_->size();
    ++next_segment_;
  }
}

bool WireReader::Copy(void* to, size_t size) {
  if (size > remaining_bytes_) return false;
  char* out = static_cast<char*>(to);
  while (size > 0) {
    const size_t step = std::min(size, contiguous_bytes());
    std::memcpy(out, position_, step);
    out += step;
    size -= step;
    Advance(step);
  }
  return true;
}

bool WireReader::Skip(size_t size) {
  if (size > remaining_bytes_) return false;
  while (size > 0) {
    const size_t step = std::min(size, contiguous_bytes());
    size -= step;
    Advance(step);
  }
  return true;
}

bool WireReader::ReadVarintWithinSegment(uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < kMaxVarintBytes; ++i) {
    const auto byte = static_cast<unsigned char>(position_[i]);
    result |= static_cast<uint64_t>(byte & 0x7FU) << (7 * i);
    if (byte < 0x80) {
      position_ += i + 1;
      remaining_bytes_ -= i + 1;
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireReader::ReadVarintAcrossSegments(uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < kMaxVarintBytes; ++i) {
    if (remaining_bytes_ == 0) return false;
    const auto byte = static_cast<unsigned char>(*position_);
    Advance(1);
    result |= static_cast<uint64_t>(byte & 0x7FU) << (7 * i);
    if (byte < 0x80) {
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireReader::ReadShortVarint(uint64_t* value) {
  const size_t before = remaining_bytes_;
  return ReadVarint(value) && before - remaining_bytes_ <= kMaxShortVarintBytes;
}

bool WireReader::ReadLength(uint64_t* bytes) {
  return ReadShortVarint(bytes) && *bytes <= remaining_bytes_;
}

bool WireReader::ReadTag(WireTag* tag) {
  uint64_t varint = 0;
  if (!ReadShortVarint(&varint)) return false;
  // Drops the bits of the fifth byte that do not fit, as protobuf's C++ parser does.
  const auto value = static_cast<uint32_t>(varint);
  tag->field = value >> kTagTypeBits;
  const auto type = static_cast<uint8_t>(value & 7U);
  tag->type = static_cast<WireType>(type);
  return tag->field != 0 && type <= static_cast<uint8_t>(WireType::kFixed32);
}

bool WireReader::ReadDelimited(WireReader* field) {
  uint64_t size = 0;
  if (!ReadLength(&size)) return false;
  *field = *this;
  field->remaining_bytes_ = size;
  return Skip(size);
}

bool WireReader::ReadBytes(std::string* value) {
  uint64_t size = 0;
  if (!ReadLength(&size)) return false;
  value->resize(size);
  return Copy(value->data(), size);
}

bool WireReader::ReadString(std::string* value) { return ReadBytes(value) && IsValidUtf8(*value); }

void WireReader::AppendRest(std::string* to) {
  while (remaining_bytes_ > 0) {
    const size_t step = contiguous_bytes();
    to->append(position_, step);
    Advance(step);
  }
}

bool WireReader::SkipField(WireTag tag) { return SkipField(tag, 0); }

bool WireReader::SkipField(WireTag tag, int depth) {
  uint64_t size = 0;
  switch (tag.type) {
    case WireType::kVarint:
      return ReadVarint(&size);
    case WireType::kFixed64:
      return Skip(sizeof(uint64_t));
    case WireType::kFixed32:
      return Skip(sizeof(uint32_t));
    case WireType::kLengthDelimited:
      return ReadLength(&size) && Skip(size);
    case WireType::kStartGroup:
      return SkipGroup(tag.field, depth + 1);
    case WireType::kEndGroup:
      return false;
  }
  return false;
}

bool WireReader::SkipGroup(uint32_t field, int depth) {
  if (depth > kMaxMessageDepth) return false;
  WireTag tag;
  while (ReadTag(&tag)) {
    if (tag.type == WireType::kEndGroup) return tag.field == field;
    if (!SkipField(tag, depth)) return false;
  }
  return false;
}

bool IsValidUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t i = 0; i < text.size();) {
    const size_t length = SequenceBytes(bytes + i, text.size() - i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

}  // namespace millpond::base
