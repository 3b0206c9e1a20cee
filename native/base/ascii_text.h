#pragma once

#include <algorithm>
#include <string>
#include <string_view>

// Texts of protocols, whose letters are ASCII whatever the locale is.
namespace millpond::base {

inline char LowerOf(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string LowerOf(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = LowerOf(c);
  return lower;
}

inline bool EqualWithoutCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return LowerOf(x) == LowerOf(y); });
}

inline bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

inline bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

inline bool IsLetterOrDigit(char c) {
  return (LowerOf(c) >= 'a' && LowerOf(c) <= 'z') || IsDigit(c);
}

// Returns the value of a hexadecimal digit; -1 of any other character.
inline int HexOf(char c) {
  if (IsDigit(c)) return c - '0';
  const char lower = LowerOf(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// True also of "".
inline bool AreDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), IsDigit);
}

}  // namespace millpond::base
