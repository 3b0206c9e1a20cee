#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millpond::rpc {

// The head of one request over HTTP/1, as its parser reports it. The names of the fields are in
// lower case. A value.
struct HttpHead {
  using Field = std::pair<std::string, std::string>;

  std::string method;
  std::string target;  // as received
  int major = 1;
  int minor = 1;
  std::vector<Field> fields;

  // The value of the first field of that name; null without one.
  const std::string* Find(std::string_view name) const;
  // The bytes that it takes in memory, objects included.
  size_t bytes() const;
};

// Returns the reason why a head is refused with 400, with the remedy; "" if it is not. Pure.
//
// A server and a proxy that disagree about the end of a body, or about the host, can be made to
// take one client's bytes for another client's request (RFC 9112, 3.2 and 6.3). So each head with
// two readings is refused.
std::string HeadFault(const HttpHead& head);

// Returns why the text of a Host header is refused with 400; "" if it is not. Pure.
std::string HostFault(std::string_view host);

// Returns true if a target has only bytes that a URL may have. Pure.
bool IsTarget(std::string_view target);

// Returns the path and query of a request's target, which may be a whole URL (RFC 9112, 3.2.2).
// Borrows `target`.
std::string_view PathOf(std::string_view target);

// Returns the reason phrase of an HTTP status; "" for one that this server does not send.
std::string_view ReasonOf(int status);

}  // namespace millpond::rpc
