#include "native/rpc/http_head.h"

#include <algorithm>
#include <array>

#include "native/base/ascii_text.h"

namespace millpond::rpc {
namespace {

constexpr char kRemedy[] = "; send 'chunked' alone, or Content-Length alone";

// A name or an IPv4 address of RFC 3986, 3.2.2, up to the port.
bool IsName(std::string_view text) {
  constexpr std::string_view kOthers = "_.~!$&'()*+,;=-";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size() || base::HexOf(text[i + 1]) < 0 || base::HexOf(text[i + 2]) < 0)
        return false;
      i += 2;
    } else if (!base::IsLetterOrDigit(text[i]) && kOthers.find(text[i]) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

// An address of IPv6 in brackets, perhaps with a zone.
bool IsBracketed(std::string_view text) {
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') return false;
  const std::string_view address = text.substr(1, text.size() - 2);
  const size_t zone = address.find("%25");
  const std::string_view number = address.substr(0, zone);
  if (zone != std::string_view::npos && !IsName(address.substr(zone + 3))) return false;
  return !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
    return base::HexOf(c) >= 0 || c == ':' || c == '.';
  });
}

bool IsHost(std::string_view text) {
  const size_t bracket = text.rfind(']');
  const size_t colon = text.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  if (has_port && !base::AreDigits(text.substr(colon + 1))) return false;
  const std::string_view host = has_port ? text.substr(0, colon) : text;
  return !host.empty() && host.front() == '[' ? IsBracketed(host) : IsName(host);
}

// The host of a target that is a whole URL; nothing of another target.
std::string_view HostOfTarget(std::string_view target, bool* is_url) {
  const size_t scheme = target.find("://");
  *is_url =
      scheme != std::string_view::npos && scheme > 0 &&
      std::all_of(target.begin(), target.begin() + static_cast<ptrdiff_t>(scheme), [](char c) {
        return base::IsLetterOrDigit(c) || c == '+' || c == '-' || c == '.';
      });
  if (!*is_url) return {};
  const std::string_view rest = target.substr(scheme + 3);
  return rest.substr(0, rest.find_first_of("/?#"));
}

std::string TransferEncodingFault(const HttpHead& head) {
  std::vector<std::string_view> values;
  bool has_length = false;
  for (const auto& [name, value] : head.fields) {
    if (name == "transfer-encoding") values.push_back(value);
    has_length = has_length || name == "content-length";
  }
  if (values.empty()) return "";
  if (has_length) return std::string("both Transfer-Encoding and Content-Length") + kRemedy;
  // A client of HTTP/1.0 may not know the end of a chunked body (RFC 9112, 6.1).
  if (head.minor == 0) return "Transfer-Encoding over HTTP/1.0; use HTTP/1.1";
  if (values.size() == 1 && base::EqualWithoutCase(values.front(), "chunked")) return "";
  std::string given;
  for (const std::string_view value : values) {
    if (!given.empty()) given += ", ";
    given += value;
  }
  return "Transfer-Encoding '" + given + "' is not supported" + kRemedy;
}

std::string HostHeadersFault(const HttpHead& head) {
  const auto is_host = [](const auto& field) { return field.first == "host"; };
  const auto count = std::count_if(head.fields.begin(), head.fields.end(), is_host);
  if (count > 1) return "the request has " + std::to_string(count) + " Host headers; send one";
  if (count == 0) return head.minor == 0 ? "" : "HTTP/1.1 without a Host header; send one";
  const std::string& host = *head.Find("host");
  std::string fault = HostFault(host);
  if (!fault.empty()) return fault;
  bool is_url = false;
  const std::string_view named = HostOfTarget(head.target, &is_url);
  if (!is_url || base::EqualWithoutCase(named, host)) return "";
  return "the request's target names the host '" + std::string(named) +
         "', and its Host header another one";
}

}  // namespace

const std::string* HttpHead::Find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

size_t HttpHead::bytes() const {
  size_t total = method.capacity() + target.capacity() + fields.capacity() * sizeof(Field);
  for (const auto& [name, value] : fields) total += name.capacity() + value.capacity();
  return total;
}

std::string HeadFault(const HttpHead& head) {
  if (head.Find("") != nullptr) return "a header without a name; leave it out";
  std::string fault = TransferEncodingFault(head);
  return fault.empty() ? HostHeadersFault(head) : fault;
}

std::string HostFault(std::string_view host) {
  return IsHost(host) ? "" : "Host '" + std::string(host) + "' is not HOST or HOST:PORT";
}

bool IsTarget(std::string_view target) {
  return !target.empty() &&
         std::all_of(target.begin(), target.end(), [](char c) { return '!' <= c && c <= '~'; });
}

std::string_view PathOf(std::string_view target) {
  bool is_url = false;
  const std::string_view host = HostOfTarget(target, &is_url);
  if (!is_url) return target;
  const std::string_view path = target.substr(target.find("://") + 3 + host.size());
  return path.empty() ? "/" : path;
}

std::string_view ReasonOf(int status) {
  struct Row {
    int status;
    std::string_view reason;
  };
  static constexpr std::array<Row, 27> kRows = {{
      {200, "OK"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {421, "Misdirected Request"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
  }};
  for (const Row& row : kRows) {
    if (row.status == status) return row.reason;
  }
  return "";
}

}  // namespace millpond::rpc
