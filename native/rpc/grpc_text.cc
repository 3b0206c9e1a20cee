#include "native/rpc/grpc_text.h"

#include <algorithm>

namespace millpond::rpc {
namespace {

constexpr int64_t kMaxTimeoutNs = int64_t{1'000'000'000} * 1'000'000'000;  // 30 years
constexpr size_t kMaxTimeoutDigits = 8;

int64_t UnitNs(char unit) {
  switch (unit) {
    case 'H':
      return int64_t{3'600} * 1'000'000'000;
    case 'M':
      return int64_t{60} * 1'000'000'000;
    case 'S':
      return 1'000'000'000;
    case 'm':
      return 1'000'000;
    case 'u':
      return 1'000;
    case 'n':
      return 1;
    default:
      return 0;
  }
}

}  // namespace

std::optional<int64_t> ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kMaxTimeoutDigits + 1) return {};
  const int64_t unit_ns = UnitNs(text.back());
  if (unit_ns == 0) return {};
  int64_t count = 0;
  for (const char digit : text.substr(0, text.size() - 1)) {
    if (digit < '0' || digit > '9') return {};
    count = count * 10 + (digit - '0');
  }
  return count > kMaxTimeoutNs / unit_ns ? kMaxTimeoutNs : count * unit_ns;
}

std::string PercentEncode(std::string_view message) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(message.size());
  for (const char character : message) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
      encoded.push_back(character);
      continue;
    }
    encoded.push_back('%');
    encoded.push_back(kHex[byte >> 4U]);
    encoded.push_back(kHex[byte & 0xfU]);
  }
  return encoded;
}

bool IsGrpcContentType(std::string_view text) {
  constexpr std::string_view kType = "application/grpc";
  if (text.substr(0, kType.size()) != kType) return false;
  return text.size() == kType.size() || text[kType.size()] == '+' || text[kType.size()] == ';';
}

bool ListContains(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (item == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace millpond::rpc
