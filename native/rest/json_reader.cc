#include "native/rest/json_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "native/base/wire_reader.h"
#include "native/rest/number_token.h"

namespace millpond::rest {
namespace {

// The number of bytes of a token that a message shows.
constexpr size_t kMaxExcerptBytes = 32;

constexpr uint64_t Repeat(uint8_t byte) { return 0x0101010101010101ULL * byte; }

// Returns a word that is not 0 if one of 8 bytes is 0.
uint64_t ZeroBytes(uint64_t word) { return (word - Repeat(1)) & ~word & Repeat(0x80); }

// Returns a word that is not 0 if one of 8 bytes ends plain text: '"', '\\' or a control character.
// Bytes of 0x80 and above may count, too; the caller then checks each byte.
uint64_t SpecialBytes(uint64_t word) {
  const uint64_t below_space = (word - Repeat(0x20)) & ~word & Repeat(0x80);
  return ZeroBytes(word ^ Repeat('"')) | ZeroBytes(word ^ Repeat('\\')) | below_space;
}

// Returns the position of the first '"', '\\' or control character at or after `at`, or `end`.
const char* FindSpecial(const char* at, const char* end, bool* is_ascii) {
  uint64_t seen = 0;
  for (uint64_t word = 0; end - at >= 8; at += 8) {
    std::memcpy(&word, at, 8);
    if (SpecialBytes(word) != 0) break;
    seen |= word;
  }
  for (; at < end; ++at) {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte == '"' || byte == '\\' || byte < 0x20) break;
    seen |= byte;
  }
  *is_ascii = *is_ascii && (seen & Repeat(0x80)) == 0;
  return at;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Returns the code unit of four hexadecimal digits, or -1 if there are fewer digits.
int ReadCodeUnit(const char* at, const char* end) {
  if (end - at < 4) return -1;
  int unit = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = HexDigit(at[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

void AppendUtf8(uint32_t code_point, std::string* to) {
  const auto tail = [&](int shift) {
    *to += static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    *to += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    *to += static_cast<char>(0xc0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    *to += static_cast<char>(0xe0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    *to += static_cast<char>(0xf0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool IsHighSurrogate(int unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool IsLowSurrogate(int unit) { return unit >= 0xdc00 && unit < 0xe000; }

bool EndsToken(char c) {
  return c == ',' || c == ']' || c == '}' || c == ':' || c == ' ' || c == '\n' || c == '\t' ||
         c == '\r';
}

}  // namespace

bool JsonReader::Fail(base::Status error) {
  if (error_.ok()) error_ = std::move(error);
  return false;
}

bool JsonReader::FailSyntax(std::string_view expected) {
  return Fail(base::InvalidArgument("JSON Parse error: expected " + std::string(expected) +
                                    ", got " + Excerpt() +
                                    " at offset: " + std::to_string(offset())));
}

std::string JsonReader::Excerpt() const {
  if (position_ == end_) return "the end";
  if (*position_ == '[') return "a list";
  if (*position_ == '{') return "an object";
  const char* limit = position_ + std::min(remaining_bytes(), kMaxExcerptBytes);
  const bool is_string = *position_ == '"';
  const char* at = position_ + 1;
  while (at < limit && (is_string ? *at != '"' : !EndsToken(*at))) ++at;
  if (is_string && at < limit) ++at;
  return std::string(position_, at) + (at == limit && at < end_ ? "..." : "");
}

bool JsonReader::Enter(char bracket, std::string_view expected) {
  if (Peek() != bracket) return FailSyntax(expected);
  if (++depth_ > kMaxDepth) {
    return Fail(base::InvalidArgument("JSON Parse error: nested deeper than " +
                                      std::to_string(kMaxDepth) +
                                      " at offset: " + std::to_string(offset())));
  }
  ++position_;
  is_first_ = true;
  return error_.ok();
}

bool JsonReader::NextKey(std::string_view* key) {
  if (!Next('}', "',' or '}'")) return false;
  if (Peek() != '"') return FailSyntax("a key");
  if (!ReadString(key)) return false;
  if (Peek() != ':') return FailSyntax("':'");
  ++position_;
  return true;
}

bool JsonReader::ReadString(std::string_view* value) {
  if (Peek() != '"') return FailSyntax("a string");
  const char* const text = position_ + 1;
  bool is_ascii = true;
  const char* const stop = FindSpecial(text, end_, &is_ascii);
  if (stop == end_ || *stop != '"') return Unescape(text, value);
  *value = {text, static_cast<size_t>(stop - text)};
  if (!is_ascii && !CheckUtf8(*value)) return false;
  position_ = stop + 1;
  return error_.ok();
}

bool JsonReader::CheckUtf8(std::string_view value) {
  return base::IsValidUtf8(value) || FailSyntax("a string of UTF-8");
}

// Reads the rest of a string with escapes. `text` is after its opening quote.
bool JsonReader::Unescape(const char* text, std::string_view* value) {
  unescaped_.clear();
  bool is_ascii = true;
  for (;;) {
    const char* const stop = FindSpecial(text, end_, &is_ascii);
    unescaped_.append(text, stop);
    text = stop;
    if (stop == end_) return FailSyntax("the end of a string");
    if (*stop == '"') break;
    if (*stop != '\\') {
      position_ = stop;
      return FailSyntax("no control character in a string");
    }
    if (!UnescapeOne(&text)) return false;
  }
  *value = unescaped_;
  if (!is_ascii && !CheckUtf8(*value)) return false;
  position_ = text + 1;
  return error_.ok();
}

// Reads one escape. `*at` is at the backslash before the call, and after the escape when it
// returns.
bool JsonReader::UnescapeOne(const char** at) {
  static constexpr std::string_view kEscapes = R"("\/bfnrt)";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char escape = end_ - *at > 1 ? (*at)[1] : '\0';
  if (escape == 'u') return UnescapeUnicode(at);
  const size_t found = kEscapes.find(escape);
  if (found == std::string_view::npos) {
    position_ = *at;
    return FailSyntax("an escape");
  }
  unescaped_ += kMeanings[found];
  *at += 2;
  return true;
}

bool JsonReader::UnescapeUnicode(const char** at) {
  position_ = *at;
  const int unit = ReadCodeUnit(*at + 2, end_);
  if (unit < 0) return FailSyntax("four hexadecimal digits after \\u");
  if (IsLowSurrogate(unit)) return FailSyntax("a high surrogate before a low one");
  *at += 6;
  auto code_point = static_cast<uint32_t>(unit);
  if (IsHighSurrogate(unit)) {
    const bool is_pair = end_ - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u';
    const int low = is_pair ? ReadCodeUnit(*at + 2, end_) : -1;
    if (low < 0 || !IsLowSurrogate(low)) return FailSyntax("a low surrogate after a high one");
    *at += 6;
    code_point = 0x10000 + ((code_point - 0xd800) << 10) + static_cast<uint32_t>(low - 0xdc00);
  }
  AppendUtf8(code_point, &unescaped_);
  return true;
}

bool JsonReader::Accept(std::string_view word) {
  if (remaining_bytes() < word.size() || std::memcmp(position_, word.data(), word.size()) != 0) {
    return false;
  }
  position_ += word.size();
  return true;
}

bool JsonReader::SkipValue() {
  std::string_view ignored;
  switch (Peek()) {
    case '{':
      return SkipObject();
    case '[':
      return SkipList();
    case '"':
      return ReadString(&ignored);
    default:
      if (Accept("true") || Accept("false") || Accept("null")) return error_.ok();
      return SkipNumber();
  }
}

// Skips a number of any size, because its value is not needed.
bool JsonReader::SkipNumber() {
  NumberToken token;
  double non_finite = 0;
  if (ScanNumber(position_, end_, &token)) {
    position_ = token.end;
  } else if (!ReadNonFinite(this, &non_finite)) {
    return FailSyntax("a value");
  }
  return error_.ok();
}

bool JsonReader::SkipList() {
  if (!EnterArray()) return false;
  while (NextElement()) {
    if (!SkipValue()) return false;
  }
  return error_.ok();
}

bool JsonReader::SkipObject() {
  if (!EnterObject()) return false;
  std::string_view key;
  while (NextKey(&key)) {
    if (!SkipValue()) return false;
  }
  return error_.ok();
}

void JsonReader::GoBack(Mark mark) {
  position_ = mark.position;
  depth_ = mark.depth;
  is_first_ = false;
  error_ = {};
}

}  // namespace millpond::rest
