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

// Writes JSON text into a reply, with all of its bounds (base::ReplyBuffer). The caller puts
// brackets and commas, and leaves its loops once ok() is false.
class JsonWriter {
 public:
  // `expected_bytes`: about as long as the text will be.
  explicit JsonWriter(const base::ReplyLimits& limits, size_t expected_bytes = 0) : reply_(limits) {
    if (expected_bytes > 0) reply_.Expect(expected_bytes);
  }

  bool ok() const { return reply_.ok(); }
  // The reply behind the text: for what is no JSON.
  base::ReplyBuffer* reply() { return &reply_; }

  void Raw(std::string_view text) { reply_.Append(text); }
  void Raw(char c) {
    *reply_.Reserve(1) = c;
    reply_.Advance(1);
  }
  // A number that reads back as the same T; a float always with a '.' or an exponent, and NaN,
  // Infinity or -Infinity where JSON has no number.
  template <typename T>
  void Number(T value);
  // Quoted and escaped. `text` has to be UTF-8.
  void String(std::string_view text);
  // {"b64": "..."}.
  void Base64(std::string_view bytes);

  // The text, or why there is none. Once.
  base::StatusOr<base::ReplyBytes> Take() { return reply_.Take(); }

 private:
  // Above what std::to_chars writes for any number: "-2.2250738585072014e-308".
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
