#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"

namespace millpond::rest {

// Writes JSON text into a reply, within its limits (base::ReplyBuffer). The caller writes brackets
// and commas, and leaves its loops once ok() is false.
class JsonWriter {
 public:
  // `expected_bytes` is the approximate length of the text.
  explicit JsonWriter(const base::ReplyLimits& limits, size_t expected_bytes = 0) : reply_(limits) {
    if (expected_bytes > 0) reply_.Expect(expected_bytes);
  }

  bool ok() const { return reply_.ok(); }
  // The reply that the text is written to, for bytes that are not JSON.
  base::ReplyBuffer* reply() { return &reply_; }

  void Raw(std::string_view text) { reply_.Append(text); }
  void Raw(char c) {
    *reply_.Reserve(1) = c;
    reply_.Advance(1);
  }
  // Writes a number that reads back as the same T. A float always has a '.' or an exponent. NaN,
  // Infinity and -Infinity are written for values that JSON has no number for.
  template <typename T>
  void Number(T value);
  // Writes a string, quoted and escaped. `text` must be UTF-8.
  void String(std::string_view text);
  // Writes {"b64": "..."}.
  void Base64(std::string_view bytes);

  // Returns the text, or the error that ended it. Call it once.
  base::StatusOr<base::ReplyBytes> Take() { return reply_.Take(); }

 private:
  // More than the longest text that std::to_chars writes for a number: "-2.2250738585072014e-308".
  static constexpr size_t kMaxNumberBytes = 32;

  void NonFinite(double value);

  base::ReplyBuffer reply_;
};

template <typename T>
void JsonWriter::Number(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return NonFinite(static_cast<double>(value));
  }
  char* const begin = reply_.Reserve(kMaxNumberBytes);
  char* end = std::to_chars(begin, begin + kMaxNumberBytes, value).ptr;
  if constexpr (std::is_floating_point_v<T>) {
    const bool is_whole = std::none_of(begin, end, [](char c) { return c == '.' || c == 'e'; });
    if (is_whole) {
      *end++ = '.';
      *end++ = '0';
    }
  }
  reply_.Advance(static_cast<size_t>(end - begin));
}

}  // namespace millpond::rest
