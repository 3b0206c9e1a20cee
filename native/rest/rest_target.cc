#include "native/rest/rest_target.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "native/base/ascii_text.h"
#include "native/inference/infer.h"

namespace millpond::rest {
namespace {

constexpr std::string_view kModelsV1 = "/v1/models/";
constexpr std::string_view kModelsV2 = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";
constexpr std::string_view kLabels = "/labels/";
constexpr std::string_view kInfer = "/infer";
constexpr char kReady[] = "/readyz";

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

// Takes a model, and its version or label, off the front of `path`, which follows kModelsV1.
std::optional<inference::ModelSpec> TakeModelV1(std::string_view* path) {
  inference::ModelSpec model;
  model.name = UrlDecode(Take("/:", path));
  if (model.name.empty()) return {};
  if (Skip(kVersions, path)) {
    model.version = NumberOf(Take("/:", path));
    if (!model.version) return {};
  } else if (Skip(kLabels, path)) {
    model.version_label = UrlDecode(Take("/:", path));
    if (model.version_label->empty()) return {};
  }
  return model;
}

// `path` follows kModelsV1.
std::optional<RestTarget> ParseV1(std::string_view path) {
  RestTarget target;
  auto model = TakeModelV1(&path);
  if (!model) return {};
  target.model = std::move(*model);
  const auto method = MethodOf(path);
  if (!method) return {};
  target.method = *method;
  return target;
}

// Takes a model, and its version or label, off the front of `path`, which follows kModelsV2.
std::optional<inference::ModelSpec> TakeModelV2(std::string_view* path) {
  inference::ModelSpec model;
  model.name = UrlDecode(Take("/", path));
  if (model.name.empty()) return {};
  if (path->substr(0, kVersions.size()) == kVersions) {
    path->remove_prefix(kVersions.size());
    const std::string version = UrlDecode(Take("/", path));
    if (version.empty()) return {};
    inference::SetModelVersion(version, &model);
  }
  return model;
}

// `path` follows kModelsV2.
std::optional<RestTarget> ParseV2(std::string_view path) {
  RestTarget target;
  target.method = metrics::Method::kRestModelInfer;
  auto model = TakeModelV2(&path);
  if (!model || path != kInfer) return {};
  target.model = std::move(*model);
  return target;
}

std::string PathOfModel(std::string_view prefix, const inference::ModelSpec& model,
                        std::string_view between_label) {
  std::string path = std::string(prefix) + UrlEncode(model.name);
  if (model.version) path.append(kVersions).append(std::to_string(*model.version));
  if (model.version_label) path.append(between_label).append(UrlEncode(*model.version_label));
  return path;
}

// `query` follows /readyz. The last of several models counts.
std::string ReadinessPath(std::string_view query) {
  constexpr std::string_view kModel = "model=";
  std::string path = kReady;
  while (!query.empty()) {
    query.remove_prefix(1);
    const std::string_view item = Take("&", &query);
    if (item.substr(0, kModel.size()) != kModel) continue;
    std::string name(item.substr(kModel.size()));
    std::replace(name.begin(), name.end(), '+', ' ');
    path = kReady + ("?model=" + UrlEncode(UrlDecode(name)));
  }
  return path;
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

std::optional<inference::ModelSpec> ParseMetadataTarget(std::string_view target) {
  std::string_view path = target.substr(0, target.find_first_of("?#"));
  if (!Skip(kModelsV1, &path)) return {};
  auto model = TakeModelV1(&path);
  if (!model || !base::EqualWithoutCase(path, "/metadata")) return {};
  return model;
}

std::string DocumentPath(std::string_view target) {
  target = target.substr(0, target.find('#'));
  std::string_view path = target.substr(0, target.find('?'));
  if (path == kReady) return ReadinessPath(target.substr(path.size()));
  if (Skip(kModelsV1, &path)) {
    const auto model = TakeModelV1(&path);
    return model && path.empty() ? PathOfModel(kModelsV1, *model, kLabels) : "";
  }
  if (path.substr(0, kModelsV2.size()) == kModelsV2) {
    path.remove_prefix(kModelsV2.size());
    const auto model = TakeModelV2(&path);
    const bool is_known = model && (path.empty() || path == "/ready");
    return is_known ? PathOfModel(kModelsV2, *model, kVersions).append(path) : "";
  }
  return std::string(path);
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
