#include "native/rpc/host_rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "native/base/ascii_text.h"

namespace millpond::rpc {
namespace {

constexpr std::string_view kSpace = " \t";
constexpr uint32_t kLoopbackNet = 127;

bool IsLoopbackOfIpv4(const in_addr& address) {
  return ntohl(address.s_addr) >> 24U == kLoopbackNet;
}

}  // namespace

HostRule::HostRule(const std::vector<std::string>& names) : is_any_(false) {
  for (const std::string& name : names) names_.insert(HostName(name));
}

bool HostRule::Permits(std::string_view header, std::string_view local_address) const {
  if (is_any_ || local_address.empty()) return true;
  const std::string host = HostName(header);
  if (host.empty()) return false;
  return names_.count(host) > 0 || host == local_address || IsLoopback(host);
}

std::string HostName(std::string_view header) {
  const size_t begin = header.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  std::string_view text = header.substr(begin, header.find_last_not_of(kSpace) - begin + 1);
  if (text.front() == '[') {
    text = text.substr(
        1, text.find(']') == std::string_view::npos ? std::string_view::npos : text.find(']') - 1);
  } else if (std::count(text.begin(), text.end(), ':') <= 1) {
    text = text.substr(0, text.find(':'));
  }
  if (base::EndsWith(text, ".")) text.remove_suffix(1);
  return base::LowerOf(text);
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || base::EndsWith(host, ".localhost")) return true;
  in_addr ipv4{};
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return IsLoopbackOfIpv4(ipv4);
  in6_addr ipv6{};
  if (inet_pton(AF_INET6, host.c_str(), &ipv6) != 1) return false;
  if (!IN6_IS_ADDR_V4MAPPED(&ipv6)) return IN6_IS_ADDR_LOOPBACK(&ipv6);
  return ipv6.s6_addr[12] == kLoopbackNet;
}

}  // namespace millpond::rpc
