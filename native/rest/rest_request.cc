#include "native/rest/rest_request.h"

namespace millpond::rest {
namespace {

// The bytes at each end of a body in which a signature's name is looked for: programs write it
// first or last.
constexpr size_t kLookedAtBytes = 256;

// Returns the string that follows "signature_name": in a piece of JSON; "" if there is none.
std::string_view SignatureNameIn(std::string_view json) {
  constexpr std::string_view kKey = "\"signature_name\"";
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t key = json.find(kKey);
  if (key == std::string_view::npos) return {};
  size_t at = json.find_first_not_of(kSpace, key + kKey.size());
  if (at == std::string_view::npos || json[at] != ':') return {};
  at = json.find_first_not_of(kSpace, at + 1);
  if (at == std::string_view::npos || json[at] != '"') return {};
  const size_t end = json.find('"', at + 1);
  return end == std::string_view::npos ? std::string_view() : json.substr(at + 1, end - at - 1);
}

}  // namespace

std::optional<std::string_view> RequestHeaders::Find(std::string_view key) const {
  for (const auto& [name, value] : fields_) {
    if (name == key) return value;
  }
  return {};
}

servable::BatchKey BatchKeyOf(const RestRequest& request) {
  if (request.is_compressed()) return servable::kNoBatchKey;
  std::string_view signature;
  if (request.method != metrics::Method::kRestModelInfer) {
    const std::string_view body = request.body;
    signature = SignatureNameIn(body.substr(0, kLookedAtBytes));
    if (signature.empty() && body.size() > kLookedAtBytes) {
      signature = SignatureNameIn(body.substr(body.size() - kLookedAtBytes));
    }
  }
  return servable::BatchKeyOf(request.model.name, signature);
}

}  // namespace millpond::rest
