#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/wire_reader.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

constexpr char kRefusedTranscript[] = "<refused>";

namespace internal {

inline bool TranscribeField(base::WireTag tag, base::WireReader* reader, std::string* transcript);

inline bool TranscribeMessage(base::WireReader* reader, std::string* transcript) {
  base::WireTag tag;
  while (!reader->AtEnd()) {
    if (!reader->ReadTag(&tag) || !TranscribeField(tag, reader, transcript)) return false;
  }
  return true;
}

inline bool TranscribeDelimited(base::WireTag tag, base::WireReader* reader,
                                std::string* transcript) {
  base::WireReader body;
  std::string text;
  uint64_t value = 0;
  if (tag.field == 4 && reader->ReadBytes(&text)) {
    *transcript += "bytes " + text + ";";
    return true;
  }
  if (tag.field == 5 && reader->ReadString(&text)) {
    *transcript += "string " + text + ";";
    return true;
  }
  if (tag.field == 6 && reader->ReadDelimited(&body)) {
    *transcript += "{";
    const bool parses = TranscribeMessage(&body, transcript);
    *transcript += "}";
    return parses;
  }
  if (tag.field == 7 && reader->ReadDelimited(&body)) {
    while (!body.AtEnd()) {
      if (!body.ReadVarint(&value)) return false;
      *transcript += std::to_string(value) + ",";
    }
    return true;
  }
  return tag.field >= 8 && reader->SkipField(tag);
}

inline bool TranscribeField(base::WireTag tag, base::WireReader* reader, std::string* transcript) {
  uint64_t value = 0;
  uint32_t value32 = 0;
  bool parses = false;
  if (tag.type == base::WireType::kLengthDelimited) {
    return TranscribeDelimited(tag, reader, transcript);
  }
  if (tag.field == 1 && tag.type == base::WireType::kVarint) {
    parses = reader->ReadVarint(&value);
  } else if (tag.field == 2 && tag.type == base::WireType::kFixed32) {
    parses = reader->ReadFixed32(&value32);
    value = value32;
  } else if (tag.field == 3 && tag.type == base::WireType::kFixed64) {
    parses = reader->ReadFixed64(&value);
  } else {
    return reader->SkipField(tag);
  }
  *transcript += std::to_string(tag.field) + "=" + std::to_string(value) + ";";
  return parses;
}

}  // namespace internal

// Returns as text all that a WireReader reads from `bytes`, which are cut at `cuts`: two readings
// are the same if their texts are. Field 1 is a varint, 2 fixed32, 3 fixed64, 4 bytes, 5 a string,
// 6 a message, 7 packed varints. Other fields, and these with another wire type, are skipped.
inline std::string Transcript(std::string_view bytes, const std::vector<size_t>& cuts = {}) {
  const SegmentedBytes segmented(bytes, cuts);
  base::WireReader reader = segmented.reader();
  std::string transcript;
  return internal::TranscribeMessage(&reader, &transcript) ? transcript : kRefusedTranscript;
}

}  // namespace millpond::testing
