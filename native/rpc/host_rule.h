#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::rpc {

// The hosts that a request over HTTP may name.
//
// A page of another site can have a browser ask this server: it points a name of its own at
// 127.0.0.1 or at this machine (DNS rebinding), and then reads the answers, as both have one
// origin. Such a request has the site's name in its Host header. A server with a list of its own
// names refuses it.
//
// Thread: any, because it never changes. Cost: a look-up in a small set for each request.
class HostRule {
 public:
  // Answers every host.
  HostRule() = default;
  // Answers `names` (HOST or HOST:PORT), loopback names, and the address at which a request came.
  explicit HostRule(const std::vector<std::string>& names);

  // True if a Host header names this server. A rebound name never looks like an address, so
  // `local_address`, at which the connection arrived, always does. A UNIX socket has the address
  // "" and takes every name, because no page reaches it.
  bool Permits(std::string_view header, std::string_view local_address) const;

 private:
  bool is_any_ = true;
  std::set<std::string, std::less<>> names_;
};

// The host of HOST, HOST:PORT or [IPV6]:PORT, in lower case; "" if there is none. Pure.
std::string HostName(std::string_view header);

// True if a name or address means this machine for every resolver. Pure.
bool IsLoopback(const std::string& host);

}  // namespace millpond::rpc
