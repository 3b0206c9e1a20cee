#include "native/rest/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>

namespace millpond::rest {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kInvalid = 0xff;

constexpr std::array<uint8_t, 256> MakeValues() {
  std::array<uint8_t, 256> values{};
  for (uint8_t& value : values) value = kInvalid;
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  values['-'] = 62;
  values['_'] = 63;
  return values;
}
constexpr std::array<uint8_t, 256> kValues = MakeValues();

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' || c == '\r';
}

std::string_view WithoutPadding(std::string_view coded) {
  for (int i = 0; i < 2 && !coded.empty() && coded.back() == '='; ++i) coded.remove_suffix(1);
  return coded;
}

// True if the length is possible. Padding, if present, fills up to a multiple of four characters.
bool HasRightLength(std::string_view coded, std::string_view bare) {
  if (bare.size() % 4 == 1) return false;
  return bare.size() == coded.size() || coded.size() % 4 == 0;
}

// Decodes a group of 2 to 4 characters into one to three bytes. The bits beyond the last byte must
// be 0.
bool DecodeGroup(std::string_view group, char** to) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i) {
    const uint8_t value = i < group.size() ? kValues[static_cast<unsigned char>(group[i])] : 0;
    if (value == kInvalid) return false;
    bits = bits << 6 | value;
  }
  for (size_t i = 0; i + 1 < group.size(); ++i) {
    *(*to)++ = static_cast<char>(bits >> 16);
    bits = bits << 8 & 0xffffff;
  }
  return bits == 0;
}

}  // namespace

size_t Base64Bytes(size_t plain_bytes) { return (plain_bytes + 2) / 3 * 4; }

void EncodeBase64(std::string_view plain, char* to) {
  for (size_t at = 0; at < plain.size(); at += 3) {
    const std::string_view group = plain.substr(at, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0);
    }
    for (size_t i = 0; i < 4; ++i) {
      *to++ = i <= group.size() ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
  }
}

size_t PlainBytes(std::string_view coded) {
  size_t count = coded.size();
  for (const char c : coded) count -= IsSpace(c) || c == '=' ? 1 : 0;
  return count * 3 / 4;
}

bool DecodeBase64(std::string_view coded, char* to) {
  std::string dense;
  if (std::any_of(coded.begin(), coded.end(), IsSpace)) {
    std::remove_copy_if(coded.begin(), coded.end(), std::back_inserter(dense), IsSpace);
    coded = dense;
  }
  const std::string_view bare = WithoutPadding(coded);
  if (!HasRightLength(coded, bare)) return false;
  for (size_t at = 0; at < bare.size(); at += 4) {
    if (!DecodeGroup(bare.substr(at, 4), &to)) return false;
  }
  return true;
}

}  // namespace millpond::rest
