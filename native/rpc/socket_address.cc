#include "native/rpc/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>

namespace millpond::rpc {
namespace {

std::string TextOf(int family, const void* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(family, bytes, text.data(), text.size());
  return text.data();
}

}  // namespace

IpText IpTextOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return {TextOf(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr)};
  }
  const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) return {TextOf(AF_INET, ipv6.s6_addr + 12)};
  return {TextOf(AF_INET6, &ipv6), true};
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

sockaddr_storage BoundAddress(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) bound.ss_family = AF_UNSPEC;
  return bound;
}

}  // namespace millpond::rpc
