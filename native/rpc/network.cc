#include "native/rpc/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "native/base/clock.h"

namespace millpond::rpc {
namespace {

using base::Status;

// As long as the kernel allows: a burst of clients waits here, and not in their retries.
constexpr int kBacklog = 4096;

// Connections that one event accepts: thousands that come at once must not hold up requests.
constexpr int kAcceptsPerEvent = 16;

constexpr int kEventsPerLook = 16;

// The numbers of events: the wake-up, the listeners, and below them the connections' places.
constexpr uint64_t kWakeKey = UINT64_MAX;
constexpr uint64_t kListenerKeys = UINT64_MAX - 1'024;

// Connections may have so much of the process's descriptors: one part of kDescriptorParts. HTTP has
// less, and versions and probes always find some.
constexpr int64_t kDescriptorParts = 2;
constexpr int64_t kDescriptorPartsOfOther = 6;

// The descriptors that this process may have open.
int64_t DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX) return INT32_MAX;
  return static_cast<int64_t>(limit.rlim_cur);
}

constexpr char kUnixPrefix[] = "unix:";
constexpr char kDescriptorPrefix[] = "fd:";
constexpr char kOwnPrefix[] = "own-fd:";

// More addresses than any machine's name has.
constexpr size_t kListenersMax = 256;

// Beyond the limit of connections that make place, so many are taken while none can: a probe finds
// one then.
constexpr int64_t kReservePlaces = 128;

uint64_t KeyOf(uint32_t place, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32U | place;
}
uint32_t PlaceOf(uint64_t key) { return static_cast<uint32_t>(key); }
uint32_t GenerationOf(uint64_t key) { return static_cast<uint32_t>(key >> 32U); }

Status CannotListen(const std::string& address, const char* reason) {
  return {base::Code::kUnavailable, "cannot listen on " + address + ": " + reason};
}

std::string PortText(const sockaddr_storage& peer) {
  const uint16_t port = peer.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6&>(peer).sin6_port
                            : reinterpret_cast<const sockaddr_in&>(peer).sin_port;
  return std::to_string(ntohs(port));
}

// The IP address of a peer, an IPv4 address also if it came over an IPv6 socket.
std::string AddressText(const sockaddr_storage& peer, bool* is_ipv6) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  *is_ipv6 = false;
  if (peer.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text.data(),
              text.size());
    return text.data();
  }
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, address.s6_addr + 12, text.data(), text.size());
    return text.data();
  }
  *is_ipv6 = true;
  inet_ntop(AF_INET6, &address, text.data(), text.size());
  return text.data();
}

std::string LocalAddressText(int fd) {
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  bool is_ipv6 = false;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) return "";
  return AddressText(local, &is_ipv6);
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

int BindTo(const addrinfo& address, const char** reason) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
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
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  *reason = std::strerror(errno);
  close(fd);
  return -1;
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return std::stoi(PortText(bound));
}

int SocketOption(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

// The address family of a socket that can accept streams; AF_UNSPEC for any other descriptor.
sa_family_t FamilyOfListening(int fd) {
  if (SocketOption(fd, SO_TYPE) != SOCK_STREAM || SocketOption(fd, SO_ACCEPTCONN) != 1) {
    return AF_UNSPEC;
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0 ? bound.ss_family
                                                                          : AF_UNSPEC;
}

// The rest of `text` after `prefix`; nothing if it begins otherwise.
std::optional<std::string> After(const std::string& prefix, const std::string& text) {
  if (text.compare(0, prefix.size(), prefix) != 0) return {};
  return text.substr(prefix.size());
}

// The socket file at a path; nothing if there is none, or another kind of file.
std::optional<ino_t> SocketAt(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return {};
  return found.st_ino;
}

}  // namespace

Network::~Network() {
  for (const auto& connection : All(nullptr)) connection->Close();
  for (const Listener& listener : listeners_) {
    if (listener.fd >= 0) close(listener.fd);
    // Another server may have taken the path meanwhile.
    if (listener.inode && SocketAt(listener.path) == listener.inode) unlink(listener.path.c_str());
  }
  for (const int fd : {epoll_fd_, wake_fd_, spare_fd_}) {
    if (fd >= 0) close(fd);
  }
}

// --- Listening ---

Status Network::Open() {
  if (epoll_fd_ >= 0) return {};
  listeners_.reserve(kListenersMax);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (epoll_fd_ < 0 || wake_fd_ < 0) return CannotListen("any address", std::strerror(errno));
  epoll_event wake{};
  wake.events = EPOLLIN | EPOLLET;
  wake.data.u64 = kWakeKey;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &wake);
  return {};
}

Status Network::Listen(const std::vector<std::string>& addresses,
                       std::shared_ptr<const ServerCertificates> certificates) {
  grpc_.certificates = std::move(certificates);
  if (grpc_.certificates != nullptr && grpc_.certificates->context() == nullptr) {
    return CannotListen("a port with TLS", "OpenSSL refuses its certificates");
  }
  grpc_.connection_count_max = DescriptorLimit() / kDescriptorParts;
  return ListenOnAll(&grpc_, addresses);
}

Status Network::ListenFor(const Protocol& protocol, std::shared_ptr<ServerShared> shared,
                          const std::vector<std::string>& addresses) {
  other_.shared = std::move(shared);
  other_.protocol = &protocol;
  other_.makes_place = true;
  other_.connection_count_max = DescriptorLimit() / kDescriptorPartsOfOther;
  return ListenOnAll(&other_, addresses);
}

Status Network::ListenOnAll(Port* port, const std::vector<std::string>& addresses) {
  MILLPOND_RETURN_IF_ERROR(Open());
  const int64_t limit = port->shared->limits.connection_count_max;
  if (limit > 0) port->connection_count_max = std::min(port->connection_count_max, limit);
  const size_t first = listeners_.size();
  for (const std::string& address : addresses) MILLPOND_RETURN_IF_ERROR(ListenOn(port, address));
  for (size_t i = first; i < listeners_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    event.data.u64 = kListenerKeys + i;
    epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listeners_[i].fd, &event);
  }
  return {};
}

Status Network::AddListener(Listener listener) {
  if (listeners_.size() < kListenersMax) {
    listeners_.push_back(std::move(listener));
    return {};
  }
  close(listener.fd);
  return CannotListen("more addresses", "there are too many");
}

Status Network::ListenOn(Port* port, const std::string& address) {
  if (const auto path = After(kUnixPrefix, address)) return ListenOnUnix(port, *path);
  if (const auto number = After(kDescriptorPrefix, address)) {
    return ListenOnDescriptor(port, *number, true);
  }
  if (const auto number = After(kOwnPrefix, address)) {
    return ListenOnDescriptor(port, *number, false);
  }
  return ListenOnTcp(port, address);
}

Status Network::ListenOnUnix(Port* port, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return CannotListen(kUnixPrefix + path, "a path of a UNIX socket has 1 to 107 bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // The last server that is started has the path, as with gRPC's own servers.
  if (SocketAt(path)) unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd, kBacklog) != 0) {
    const Status status = CannotListen(kUnixPrefix + path, std::strerror(errno));
    close(fd);
    return status;
  }
  return AddListener({port, fd, true, path, SocketAt(path), false});
}

Status Network::ListenOnTcp(Port* port, const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return CannotListen(address, "an address is HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const Addresses addresses(found);
  const char* reason = "no address";
  // A name may have several addresses, of which this machine has a part. All of them are bound with
  // one port.
  size_t bound_count = 0;
  for (addrinfo* next = found; next != nullptr; next = next->ai_next) {
    if (bound_count > 0 && port->number != 0) {
      const uint16_t number = htons(static_cast<uint16_t>(port->number));
      if (next->ai_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6*>(next->ai_addr)->sin6_port = number;
      } else {
        reinterpret_cast<sockaddr_in*>(next->ai_addr)->sin_port = number;
      }
    }
    const int fd = BindTo(*next, &reason);
    if (fd < 0) continue;
    MILLPOND_RETURN_IF_ERROR(AddListener({port, fd, false, "", {}, false}));
    if (bound_count++ == 0 && port->number == 0) port->number = BoundPort(fd);
  }
  return bound_count > 0 ? Status() : CannotListen(address, reason);
}

Status Network::ListenOnDescriptor(Port* port, const std::string& number, bool is_handed_in) {
  const std::string address = kDescriptorPrefix + number;
  int fd = -1;
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, fd);
  if (parsed.ec != std::errc() || parsed.ptr != end || fd < 0) {
    return CannotListen(address, "a descriptor is a number");
  }
  const sa_family_t family = FamilyOfListening(fd);
  if (family != AF_INET && family != AF_INET6 && family != AF_UNIX) {
    return CannotListen(address, "not a listening stream socket over TCP or UNIX");
  }
  // All processes that hold the socket share O_NONBLOCK. Each has its own FD_CLOEXEC.
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return CannotListen(address, std::strerror(errno));
  }
  MILLPOND_RETURN_IF_ERROR(AddListener({port, fd, family == AF_UNIX, "", {}, is_handed_in}));
  if (family != AF_UNIX && port->number == 0) port->number = BoundPort(fd);
  return {};
}

// --- Connections ---

void Network::AcceptUnlessStopped(const Listener& listener) {
  const std::shared_lock<std::shared_mutex> lock(listening_mutex_);
  if (!listener.port->has_stopped_listening) Accept(listener, kAcceptsPerEvent);
}

void Network::Accept(const Listener& listener, int count_max) {
  for (int i = 0; i < count_max; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int fd = accept4(listener.fd, reinterpret_cast<sockaddr*>(&peer), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Add(fd, listener, peer);
    } else if (errno == EMFILE || errno == ENFILE) {
      return RefuseForLackOfDescriptors(listener);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Without it the listener would stay readable, and all threads would spin.
void Network::RefuseForLackOfDescriptors(const Listener& listener) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spare_fd_ < 0) spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (spare_fd_ < 0) return;
  close(spare_fd_);
  const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  listener.port->shared->limit_counts.Add(ReachedLimit::kConnections);
}

// Without the lock: connections have locks of their own.
void Network::MakePlace(const Port& port) {
  if (!port.makes_place || port.shared->connection_count.load() < port.connection_count_max) return;
  const int64_t now_ns = base::MonotonicNs();
  std::shared_ptr<Connection> idlest;
  std::shared_ptr<Connection> slowest;
  int64_t idle_since_ns = INT64_MAX;
  double pace = 0;
  for (const auto& connection : All(port.shared.get())) {
    const auto since_ns = connection->IdleSince(now_ns);
    if (since_ns && *since_ns < idle_since_ns) {
      idle_since_ns = *since_ns;
      idlest = connection;
    }
    const auto its_pace = connection->Pace(now_ns);
    if (!its_pace || (slowest != nullptr && *its_pace >= pace)) continue;
    pace = *its_pace;
    slowest = connection;
  }
  if (idlest != nullptr) {
    idlest->Close();
    Remove(idlest->key());
  } else if (slowest != nullptr) {
    // It is closed once its client has read why.
    slowest->GiveUp(now_ns);
  }
}

bool Network::MayAdd(const Port& port, const std::string& address) {
  const WireLimits& limits = port.shared->limits;
  const int64_t reserve = port.makes_place ? kReservePlaces : 0;
  if (port.shared->connection_count.load() >= port.connection_count_max + reserve) return false;
  if (limits.connections_per_address_max <= 0 || address.empty()) return true;
  const auto found = counts_by_address_.find(address);
  return found == counts_by_address_.end() || found->second < limits.connections_per_address_max;
}

void Network::Add(int fd, const Listener& listener, const sockaddr_storage& from) {
  Port& port = *listener.port;
  MakePlace(port);
  std::string address;
  std::string local_address;
  std::string peer = kUnixPrefix;
  if (!listener.is_unix) {
    bool is_ipv6 = false;
    if (port.makes_place) local_address = LocalAddressText(fd);
    address = AddressText(from, &is_ipv6);
    peer = (is_ipv6 ? "ipv6:%5B" + address + "%5D:" : "ipv4:" + address + ":") + PortText(from);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const bool is_tls = port.certificates != nullptr && !listener.is_unix;
  auto transport = std::make_unique<Transport>(fd, is_tls ? port.certificates->context() : nullptr);
  const int64_t bytes = Connection::kBeginBytes + (is_tls ? Connection::kTlsBytes : 0);
  base::ByteBudget::Share charge(port.shared->calls.budget.get(), base::ByteBudget::Use::kCall);
  uint64_t key = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!MayAdd(port, address) || !charge.Resize(bytes)) {
      port.shared->limit_counts.Add(ReachedLimit::kConnections);
      return;
    }
    uint32_t place = static_cast<uint32_t>(places_.size());
    if (free_places_.empty()) {
      places_.emplace_back();
    } else {
      place = free_places_.back();
      free_places_.pop_back();
    }
    if (!address.empty()) counts_by_address_[address] += 1;
    port.shared->connection_count.fetch_add(1);
    places_[place].connection = std::make_shared<Connection>(
        port.shared, *port.protocol, this, std::move(transport),
        Connection::Ends{std::move(peer), std::move(address), std::move(local_address)},
        base::MonotonicNs(), std::move(charge));
    key = KeyOf(place, places_[place].generation);
    places_[place].connection->set_key(key);
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = key;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) Remove(key);
}

std::shared_ptr<Connection> Network::Find(uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t place = PlaceOf(key);
  if (place >= places_.size() || places_[place].generation != GenerationOf(key)) return nullptr;
  return places_[place].connection;
}

void Network::Remove(uint64_t key) {
  std::shared_ptr<Connection> gone;
  const std::lock_guard<std::mutex> lock(mutex_);
  Place& place = places_[PlaceOf(key)];
  if (place.generation != GenerationOf(key)) return;
  gone = std::move(place.connection);
  // The key of no connection is ever one of the listeners' or the wake-up's.
  place.generation = (place.generation + 1) % INT32_MAX;
  free_places_.push_back(PlaceOf(key));
  gone->shared()->connection_count.fetch_sub(1);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, gone->fd(), nullptr);
  const auto count = counts_by_address_.find(gone->address());
  if (count != counts_by_address_.end() && --count->second == 0) counts_by_address_.erase(count);
}

std::vector<std::shared_ptr<Connection>> Network::All(const ServerShared* whose) {
  std::vector<std::shared_ptr<Connection>> all;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Place& place : places_) {
    if (place.connection == nullptr) continue;
    if (whose == nullptr || place.connection->shared() == whose) all.push_back(place.connection);
  }
  return all;
}

// --- Events ---

void Network::HandleEvents(int timeout_ms, ReceiveSpace* space,
                           std::vector<std::shared_ptr<RunnableCall>>* to_run,
                           std::atomic<int>* idle_count) {
  std::array<epoll_event, kEventsPerLook> events;
  // A thread that waits takes one event, and leaves the others to the other threads.
  const int count =
      epoll_wait(epoll_fd_, events.data(), timeout_ms < 0 ? 1 : kEventsPerLook, timeout_ms);
  if (idle_count != nullptr) idle_count->fetch_sub(1);
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == kWakeKey) continue;
    if (key >= kListenerKeys) {
      AcceptUnlessStopped(listeners_[key - kListenerKeys]);
    } else {
      Proceed(key, events[i].events, space, to_run);
    }
  }
}

void Network::Proceed(uint64_t key, uint32_t events, ReceiveSpace* space,
                      std::vector<std::shared_ptr<RunnableCall>>* to_run) {
  const std::shared_ptr<Connection> connection = Find(key);
  if (connection == nullptr) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection->NoteHangUp();
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) connection->NoteReset();
  connection->Proceed(space, to_run);
  if (connection->is_closed()) return Remove(key);
  if (!connection->has_more()) return;
  ArmAgain(*connection);
}

void Network::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

void Network::CheckTimes(int64_t now_ns) {
  for (const auto& connection : All(nullptr)) {
    // Another thread's turn would not come before the client sends something.
    if (connection->CheckTimes(now_ns)) ArmAgain(*connection);
  }
}

void Network::ArmAgain(const Connection& connection) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = connection.key();
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.fd(), &event);
}

// --- The stop ---

void Network::StopListening(const ServerShared& whose) {
  {
    // From here on no other thread accepts: its connection would come after the others were asked
    // to go.
    const std::unique_lock<std::shared_mutex> lock(listening_mutex_);
    Port& port = &whose == other_.shared.get() ? other_ : grpc_;
    port.has_stopped_listening = true;
  }
  for (Listener& listener : listeners_) {
    if (listener.port->shared.get() != &whose) continue;
    if (listener.is_handed_in) {
      // Connections that wait stay for the next server: this one would only send them away. A
      // shutdown of the socket would end it for all processes that hold it.
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listener.fd, nullptr);
      continue;
    }
    // Clients whose connection the kernel has made already count on an answer.
    Accept(listener, kBacklog);
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listener.fd, nullptr);
    (void)shutdown(listener.fd, SHUT_RD);
    Accept(listener, kBacklog);
  }
}

void Network::AskToGo(const ServerShared& whose) {
  const int64_t now_ns = base::MonotonicNs();
  for (const auto& connection : All(&whose)) connection->AskToGo(now_ns);
}

void Network::RefuseNewStreams(const ServerShared& whose) {
  const int64_t now_ns = base::MonotonicNs();
  for (const auto& connection : All(&whose)) connection->RefuseNewStreams(now_ns);
}

bool Network::IsSettled(const ServerShared& whose) {
  const int64_t now_ns = base::MonotonicNs();
  const auto all = All(&whose);
  return std::all_of(all.begin(), all.end(),
                     [now_ns](const auto& connection) { return connection->IsSettled(now_ns); });
}

bool Network::IsReceiving(const ServerShared& whose, int64_t since_ns) {
  const auto all = All(&whose);
  return std::any_of(all.begin(), all.end(), [since_ns](const auto& connection) {
    return connection->IsReceiving(since_ns);
  });
}

void Network::CloseAll(const ServerShared& whose) {
  for (const auto& connection : All(&whose)) connection->Close();
}

}  // namespace millpond::rpc
