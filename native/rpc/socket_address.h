#pragma once

#include <sys/socket.h>

#include <string>

namespace millpond::rpc {

// The IP address of one end of a TCP connection, as text.
struct IpText {
  std::string address;  // like "127.0.0.1" also if an IPv6 socket took an IPv4 client
  bool is_ipv6 = false;
};

IpText IpTextOf(const sockaddr_storage& address);
int PortOf(const sockaddr_storage& address);

// Returns the address that a socket is bound to; AF_UNSPEC if the descriptor is no bound socket.
sockaddr_storage BoundAddress(int fd);

}  // namespace millpond::rpc
