#include "native/rest/rest_target.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

#include "native/base/ascii_text.h"

namespace millpond::rest {
namespace {

constexpr std::string_view kModelsV1 = "/v1/models/";
constexpr std::string_view kModelsV2 = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";
constexpr std::string_view kLabels = "/labels/";
constexpr std::string_view kInfer = "/infer";
// A longer number is a label (serving/kserve/questions.py).
constexpr size_t kVersionDigitsMax = 18;

// Takes `prefix`, in upper or lower case, off the front of `text`.
bool Skip(std::string_view prefix, std::string_view* text) {
  if (!base::EqualWithoutCase(text->substr(0, prefix.size()), prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Takes the characters up to one of `ends` off the front of `text`.
std::string_view Take(std::string_view ends, std::string_view* text) {
  const std::string_view taken = text->substr(0, text->find_first_of(ends));
  text->remove_prefix(taken.size());
  return taken;
}

// The number of a version; nothing if it has more than 63 bits, or is no number.
std::optional<int64_t> NumberOf(std::string_view digits) {
  if (digits.empty() || !base::AreDigits(digits)) return {};
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  if (std::from_chars(digits.data(), end, number).ec != std::errc()) return {};
  return number;
}

std::optional<metrics::Method> MethodOf(std::string_view verb) {
  if (base::EqualWithoutCase(verb, ":predict")) return metrics::Method::kRestPredict;
  if (base::EqualWithoutCase(verb, ":classify")) return metrics::Method::kRestClassify;
  if (base::EqualWithoutCase(verb, ":regress")) return metrics::Method::kRestRegress;
  return {};
}

// `path` follows kModelsV1.
std::optional<RestTarget> ParseV1(std::string_view path) {
  RestTarget target;
  target.model.name = UrlDecode(Take("/:", &path));
  if (target.model.name.empty()) return {};
  if (Skip(kVersions, &path)) {
    target.model.version = NumberOf(Take("/:", &path));
    if (!target.model.version) return {};
  } else if (Skip(kLabels, &path)) {
    target.model.version_label = UrlDecode(Take("/:", &path));
    if (target.model.version_label->empty()) return {};
  }
  const auto method = MethodOf(path);
  if (!method) return {};
  target.method = *method;
  return target;
}

// `path` follows kModelsV2.
std::optional<RestTarget> ParseV2(std::string_view path) {
  RestTarget target;
  target.method = metrics::Method::kRestModelInfer;
  target.model.name = UrlDecode(Take("/", &path));
  if (target.model.name.empty()) return {};
  if (path.substr(0, kVersions.size()) == kVersions) {
    path.remove_prefix(kVersions.size());
    const std::string version = UrlDecode(Take("/", &path));
    if (version.empty()) return {};
    if (version.size() <= kVersionDigitsMax) target.model.version = NumberOf(version);
    if (!target.model.version) target.model.version_label = version;
  }
  if (path != kInfer) return {};
  return target;
}

bool IsUnreserved(char c) {
  return base::IsLetterOrDigit(c) || c == '_' || c == '.' || c == '-' || c == '~';
}

}  // namespace

std::optional<RestTarget> ParseRestTarget(std::string_view target) {
  std::string_view path = target.substr(0, target.find_first_of("?#"));
  if (path.substr(0, kModelsV2.size()) == kModelsV2) return ParseV2(path.substr(kModelsV2.size()));
  if (Skip(kModelsV1, &path)) return ParseV1(path);
  return {};
}

std::string UrlDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '%' && i + 2 < text.size() && base::HexOf(text[i + 1]) >= 0 &&
                           base::HexOf(text[i + 2]) >= 0;
    if (!is_escape) {
      decoded.push_back(text[i]);
      continue;
    }
    decoded.push_back(static_cast<char>(16 * base::HexOf(text[i + 1]) + base::HexOf(text[i + 2])));
    i += 2;
  }
  return decoded;
}

std::string UrlEncode(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (IsUnreserved(c)) {
      encoded.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded.push_back('%');
    encoded.push_back(kDigits[byte >> 4U]);
    encoded.push_back(kDigits[byte & 15U]);
  }
  return encoded;
}

}  // namespace millpond::rest
