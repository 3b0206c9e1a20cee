#include "native/rpc/listeners.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "native/rpc/socket_address.h"

namespace millpond::rpc {
namespace {

using base::Status;

constexpr char kUnixPrefix[] = "unix:";
constexpr char kDescriptorPrefix[] = "fd:";
constexpr char kOwnPrefix[] = "own-fd:";

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Status CannotListen(const std::string& address, const char* reason) {
  return {base::Code::kUnavailable, "cannot listen on " + address + ": " + reason};
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

int NewSocket(int family) { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// Returns the rest of `text` after `prefix`; nothing if it begins otherwise.
std::optional<std::string> After(const std::string& prefix, const std::string& text) {
  if (text.compare(0, prefix.size(), prefix) != 0) return {};
  return text.substr(prefix.size());
}

// Returns the socket file at a path; nothing if there is none, or another kind of file.
std::optional<ino_t> SocketAt(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return {};
  return found.st_ino;
}

// "localhost" of "localhost:80", "::1" of "[::1]:80".
std::string HostOf(const std::string& address, size_t colon) {
  const std::string host = address.substr(0, colon);
  const bool has_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

void SetPort(int port, addrinfo* address) {
  const uint16_t number = htons(static_cast<uint16_t>(port));
  if (address->ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = number;
  }
}

int BindTo(const addrinfo& address, const char** reason) {
  const int fd = NewSocket(address.ai_family);
  if (fd < 0) {
    *reason = std::strerror(errno);
    return -1;
  }
  const int on = 1;
  const int off = 0;
  // Not SO_REUSEPORT: two servers on one port would each get a part of the requests.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // "[::]" takes clients over IPv4 too.
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, Listeners::kBacklog) == 0) {
    return fd;
  }
  *reason = std::strerror(errno);
  close(fd);
  return -1;
}

int SocketOption(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

bool IsListening(int fd) {
  return SocketOption(fd, SO_TYPE) == SOCK_STREAM && SocketOption(fd, SO_ACCEPTCONN) == 1;
}

}  // namespace

Listeners::~Listeners() {
  for (const Listener& listener : listeners_) {
    close(listener.fd);
    // Another server may have taken the path meanwhile.
    if (listener.inode && SocketAt(listener.path) == listener.inode) unlink(listener.path.c_str());
  }
  if (spare_fd_ >= 0) close(spare_fd_);
}

// --- Opening ---

Status Listeners::Open(const std::vector<std::string>& addresses) {
  spare_fd_ = OpenSpare();
  for (const std::string& address : addresses) MILLPOND_RETURN_IF_ERROR(OpenOne(address));
  return {};
}

Status Listeners::OpenOne(const std::string& address) {
  if (const auto path = After(kUnixPrefix, address)) return OpenUnix(*path);
  if (const auto number = After(kDescriptorPrefix, address)) return OpenDescriptor(*number, true);
  if (const auto number = After(kOwnPrefix, address)) return OpenDescriptor(*number, false);
  return OpenTcp(address);
}

Status Listeners::Add(Listener listener) {
  if (listeners_.size() < kCountMax) {
    listeners_.push_back(std::move(listener));
    return {};
  }
  close(listener.fd);
  return CannotListen("more addresses", "there are too many");
}

Status Listeners::OpenUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return CannotListen(kUnixPrefix + path, "a path of a UNIX socket has 1 to 107 bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // The last server that is started has the path, as with gRPC's own servers.
  if (SocketAt(path)) unlink(path.c_str());
  const int fd = NewSocket(AF_UNIX);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd, kBacklog) != 0) {
    const Status status = CannotListen(kUnixPrefix + path, std::strerror(errno));
    close(fd);
    return status;
  }
  return Add({fd, true, false, path, SocketAt(path)});
}

Status Listeners::OpenTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return CannotListen(address, "an address is HOST:PORT");
  const std::string host = HostOf(address, colon);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const Addresses addresses(found);
  const char* reason = "no address";
  const size_t bound_count = BindAll(found, &reason);
  return bound_count > 0 ? Status() : CannotListen(address, reason);
}

// A name may have several addresses, of which this machine has a part. All of them are bound with
// the port that the first of them got. Returns how many were bound, and sets `*reason` to why
// another one was not.
size_t Listeners::BindAll(addrinfo* found, const char** reason) {
  size_t bound_count = 0;
  int port = 0;
  for (addrinfo* next = found; next != nullptr; next = next->ai_next) {
    if (bound_count > 0) SetPort(port, next);
    const int fd = BindTo(*next, reason);
    if (fd < 0) continue;
    if (!Add({fd, false}).ok()) {
      *reason = "there are too many addresses";
      return 0;
    }
    if (bound_count++ == 0) port = PortOf(BoundAddress(fd));
    if (port_ == 0) port_ = port;
  }
  return bound_count;
}

Status Listeners::OpenDescriptor(const std::string& number, bool is_handed_in) {
  const std::string address = kDescriptorPrefix + number;
  int fd = -1;
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, fd);
  if (parsed.ec != std::errc() || parsed.ptr != end || fd < 0) {
    return CannotListen(address, "a descriptor is a number");
  }
  const sockaddr_storage bound = BoundAddress(fd);
  const sa_family_t family = bound.ss_family;
  if (!IsListening(fd) || (family != AF_INET && family != AF_INET6 && family != AF_UNIX)) {
    return CannotListen(address, "not a listening stream socket over TCP or UNIX");
  }
  // All processes that hold the socket share O_NONBLOCK. Each has its own FD_CLOEXEC.
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return CannotListen(address, std::strerror(errno));
  }
  MILLPOND_RETURN_IF_ERROR(Add({fd, family == AF_UNIX, is_handed_in}));
  if (family != AF_UNIX && port_ == 0) port_ = PortOf(bound);
  return {};
}

// --- Accepting ---

Listeners::Accepted Listeners::Accept(size_t index, AcceptedClient* client) {
  const Listener& listener = listeners_[index];
  client->is_unix = listener.is_unix;
  while (true) {
    socklen_t size = sizeof client->address;
    client->fd = accept4(listener.fd, reinterpret_cast<sockaddr*>(&client->address), &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client->fd >= 0) return Accepted::kClient;
    if (errno == EMFILE || errno == ENFILE) {
      return CloseOneClient(listener.fd) ? Accepted::kRefused : Accepted::kNone;
    }
    if (errno != EINTR && errno != ECONNABORTED) return Accepted::kNone;
  }
}

// Accepts and closes one client by the help of the spare descriptor. Otherwise the listener would
// stay readable, and all threads would spin.
bool Listeners::CloseOneClient(int fd) {
  const std::lock_guard<std::mutex> lock(spare_mutex_);
  if (spare_fd_ < 0) spare_fd_ = OpenSpare();
  if (spare_fd_ < 0) return false;
  close(spare_fd_);
  const int client_fd = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
  if (client_fd >= 0) close(client_fd);
  spare_fd_ = OpenSpare();
  return true;
}

}  // namespace millpond::rpc
