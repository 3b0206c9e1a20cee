#include "native/rpc/request_headers.h"

#include <algorithm>

#include "native/base/ascii_text.h"
#include "native/rpc/grpc_text.h"

namespace millpond::rpc {
namespace {

// RFC 9113, 6.5.2: each header counts so many bytes beside its name and value.
constexpr size_t kOverheadBytes = 32;

// These say how the call is made, and not what it is about.
bool IsOfTheProtocol(std::string_view name) {
  return name == "te" || name == "user-agent" || name == "accept-encoding" ||
         name == "grpc-message-type";
}

}  // namespace

bool RequestHeaders::Add(std::string_view name, std::string_view value) {
  bytes_ += name.size() + value.size() + kOverheadBytes;
  const auto room_bytes = static_cast<size_t>(charge_.bytes() - begin_bytes_ + kRoomBytes);
  if (bytes_ > room_bytes && charge_.bytes() > 0 &&
      !charge_.Add(static_cast<int64_t>(bytes_ - room_bytes) + kRoomBytes)) {
    return false;
  }
  if (name == ":path") {
    path_ = value;
  } else if (name == ":method") {
    is_post_ = value == "POST";
    if (is_http_) http_method_ = value;
  } else if (is_http_ && (name == "host" || name == ":authority")) {
    AddHost(value);
  } else if (is_http_) {
    if (name[0] != ':') AddMetadata(name, value);
  } else if (name == "content-type") {
    content_type_ = value;
  } else if (name == "grpc-timeout") {
    timeout_ns_ = ParseTimeout(value);
    has_bad_timeout_ = !timeout_ns_;
  } else if (name == "grpc-encoding") {
    encoding_ = EncodingOf(value);
  } else if (name == "grpc-accept-encoding") {
    accepted_encodings_ = value;
  } else if (name[0] != ':' && !IsOfTheProtocol(name)) {
    AddMetadata(name, value);
  }
  return true;
}

// HTTP/2 has the host as a pseudo-header, and a client may send both (RFC 9113, 8.3.1).
void RequestHeaders::AddHost(std::string_view value) {
  const auto host = FindMetadata("host");
  has_two_hosts_ = has_two_hosts_ || (host && !base::EqualWithoutCase(*host, value));
  if (!host) AddMetadata("host", value);
}

void RequestHeaders::AddMetadata(std::string_view name, std::string_view value) {
  metadata_.append(name).push_back('\0');
  metadata_.append(value).push_back('\0');
}

base::Status RequestHeaders::Check() const {
  if (has_two_hosts_) {
    return base::InvalidArgument(
        "the request's :authority names a host, and its Host header another one");
  }
  if (!has_bad_timeout_) return {};
  return base::InvalidArgument(
      "the header grpc-timeout must be 1 to 8 digits and one of the units H, M, S, m, u and n");
}

std::optional<std::string_view> RequestHeaders::FindMetadata(std::string_view key) const {
  std::optional<std::string_view> found;
  ForEachMetadata(metadata_, [&](std::string_view name, std::string_view value) {
    if (!found && name == key) found = value;
  });
  return found;
}

void RequestHeaders::Free() {
  path_ = {};
  content_type_ = {};
  accepted_encodings_ = {};
  metadata_ = {};
  charge_.Resize(std::min(charge_.bytes(), begin_bytes_));
}

}  // namespace millpond::rpc
