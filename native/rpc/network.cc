#include "native/rpc/network.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/socket_address.h"

namespace millpond::rpc {
namespace {

using base::Status;

// One event accepts at most this many connections, because thousands that come at once must not
// hold up requests.
constexpr int kAcceptsPerEvent = 16;

constexpr int kEventsPerLook = 16;
// Each thread that accepts may take the place that another one has made.
constexpr int kPlaceTries = 8;

// The keys of the listeners of the two ports.
constexpr uint64_t kGrpcListenerKeys = ConnectionSet::kListenerKeysBegin;
constexpr uint64_t kOtherListenerKeys = kGrpcListenerKeys + Listeners::kCountMax;

// Returns a client's end as CallCarrier::peer has it.
std::string PeerOf(const IpText& ip, int port) {
  const std::string prefix = ip.is_ipv6 ? "ipv6:%5B" + ip.address + "%5D" : "ipv4:" + ip.address;
  return prefix + ":" + std::to_string(port);
}

Connection::Ends EndsOf(const AcceptedClient& client, bool has_local_address) {
  if (client.is_unix) return {"unix:", "", ""};
  const IpText ip = IpTextOf(client.address);
  return {PeerOf(ip, PortOf(client.address)), ip.address,
          has_local_address ? IpTextOf(BoundAddress(client.fd)).address : ""};
}

}  // namespace

Network::Network(std::shared_ptr<ServerShared> shared, size_t group_count) {
  grpc_.shared = std::move(shared);
  for (size_t i = 0; i < group_count; ++i) sets_.push_back(std::make_unique<ConnectionSet>());
}

Network::~Network() {
  for (const auto& connection : All(nullptr)) connection->Close();
}

// --- Listening ---

Status Network::Listen(const std::vector<std::string>& addresses,
                       std::shared_ptr<const ServerCertificates> certificates) {
  grpc_.protocol = &grpc_protocol_;
  grpc_.certificates = std::move(certificates);
  grpc_.places = PlaceLimits::OfGrpc(Descriptors::Now(), grpc_.shared->limits.connection_count_max);
  return ListenOn(&grpc_, addresses);
}

Status Network::ListenFor(const Protocol& protocol, std::shared_ptr<ServerShared> shared,
                          const std::vector<std::string>& addresses,
                          std::shared_ptr<const ServerCertificates> certificates) {
  other_.shared = std::move(shared);
  other_.certificates = std::move(certificates);
  other_.protocol = &protocol;
  other_.makes_place = true;
  other_.places =
      PlaceLimits::OfMakingPlace(Descriptors::Now(), other_.shared->limits.connection_count_max);
  return ListenOn(&other_, addresses);
}

Status Network::ListenOn(Port* port, const std::vector<std::string>& addresses) {
  if (port->certificates != nullptr && port->certificates->context() == nullptr) {
    return {base::Code::kUnavailable,
            "cannot listen on a port with TLS: OpenSSL refuses its certificates"};
  }
  Descriptors::MakeRoom(port->places.descriptor_max);
  for (const auto& set : sets_) MILLPOND_RETURN_IF_ERROR(set->Open());
  MILLPOND_RETURN_IF_ERROR(port->listeners.Open(addresses));
  const uint64_t first_key = port == &grpc_ ? kGrpcListenerKeys : kOtherListenerKeys;
  for (size_t i = 0; i < port->listeners.count(); ++i) {
    for (const auto& set : sets_) set->AddListener(port->listeners.fd(i), first_key + i);
  }
  return {};
}

// --- Connections ---

void Network::AcceptUnlessStopped(uint64_t key) {
  const bool is_other = key >= kOtherListenerKeys;
  Port& port = is_other ? other_ : grpc_;
  const std::shared_lock<std::shared_mutex> lock(listening_mutex_);
  if (port.has_stopped_listening) return;
  Accept(&port, key - (is_other ? kOtherListenerKeys : kGrpcListenerKeys), kAcceptsPerEvent);
}

void Network::Accept(Port* port, size_t listener, int count_max) {
  AcceptedClient client;
  for (int i = 0; i < count_max; ++i) {
    const Listeners::Accepted accepted = port->listeners.Accept(listener, &client);
    if (accepted == Listeners::Accepted::kClient) {
      Add(*port, client);
      continue;
    }
    if (accepted == Listeners::Accepted::kRefused) {
      port->shared->limit_counts.Add(ReachedLimit::kConnections);
      // The server itself needs more descriptors than it was left.
      if (port->makes_place) (void)MakePlace(*port, Room::kNone);
    }
    return;
  }
}

// Closes a connection without an open request: one that never had any before the others, and of
// these the one that has been idle longest. If there is none, refuses the request whose body comes
// slowest. Returns true if a place is free now. Called without the lock, because connections take
// locks of their own.
bool Network::MakePlace(const Port& port, Room room) {
  const int64_t now_ns = base::MonotonicNs();
  const bool is_urgent = room == Room::kNone;
  std::shared_ptr<Connection> idlest;
  ConnectionSet* set_of_idlest = nullptr;
  std::optional<Idleness> least;
  for (const auto& set : sets_) {
    for (auto& connection : set->All(port.shared.get())) {
      const auto idleness = connection->IdleSince(now_ns, is_urgent, least);
      if (!idleness) continue;
      least = idleness;
      idlest = std::move(connection);
      set_of_idlest = set.get();
    }
  }
  if (idlest == nullptr) {
    GiveUpSlowest(port, now_ns);
    return false;
  }
  idlest->Close();
  Remove(set_of_idlest, idlest->key());
  return true;
}

// Its connection is closed once its client has read why.
void Network::GiveUpSlowest(const Port& port, int64_t now_ns) {
  std::shared_ptr<Connection> slowest;
  double pace = 0;
  for (auto& connection : All(port.shared.get())) {
    const auto its_pace = connection->Pace(now_ns);
    if (!its_pace || (slowest != nullptr && *its_pace >= pace)) continue;
    pace = *its_pace;
    slowest = std::move(connection);
  }
  if (slowest != nullptr) slowest->GiveUp(now_ns);
}

// Has another connection leave if the room for a client is scarce. Returns false if there is none.
bool Network::FindRoom(const Port& port, int descriptor) {
  const Room room = port.places.RoomFor(port.shared->connection_count.load(), descriptor);
  const bool has_left = room != Room::kFree && port.makes_place && MakePlace(port, room);
  return has_left || room != Room::kNone;
}

// Counts one more connection, unless the port or the address has as many as it may.
bool Network::TakePlace(const Port& port, const std::string& address) {
  const WireLimits& limits = port.shared->limits;
  const std::lock_guard<std::mutex> lock(places_mutex_);
  if (port.shared->connection_count.load() >= port.places.count_max) return false;
  if (!address.empty()) {
    int64_t& of_address = counts_by_address_[address];
    const int64_t limit = limits.connections_per_address_max;
    if (limit > 0 && of_address >= limit) return false;
    of_address += 1;
  }
  port.shared->connection_count.fetch_add(1);
  return true;
}

// Takes a place; makes one if other threads have taken the last ones since FindRoom.
bool Network::TakeOrMakePlace(const Port& port, const std::string& address) {
  for (int tries = 0; tries < kPlaceTries; ++tries) {
    if (TakePlace(port, address)) return true;
    const bool is_full = port.shared->connection_count.load() >= port.places.count_max;
    if (!is_full || !port.makes_place) return false;
    (void)MakePlace(port, Room::kNone);
  }
  return false;
}

void Network::ReturnPlace(const Connection& connection) {
  const std::lock_guard<std::mutex> lock(places_mutex_);
  connection.shared()->connection_count.fetch_sub(1);
  const auto count = counts_by_address_.find(connection.address());
  if (count != counts_by_address_.end() && --count->second == 0) counts_by_address_.erase(count);
}

ConnectionSet& Network::EmptiestSet() {
  return **std::min_element(sets_.begin(), sets_.end(), [](const auto& left, const auto& right) {
    return left->count() < right->count();
  });
}

void Network::Add(const Port& port, const AcceptedClient& client) {
  const bool has_room = FindRoom(port, client.fd);
  Connection::Ends ends = EndsOf(client, /*has_local_address=*/port.makes_place);
  if (!client.is_unix) {
    const int on = 1;
    setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const bool is_tls = port.certificates != nullptr && !client.is_unix;
  auto transport = std::make_unique<Transport>(
      client.fd, is_tls ? port.certificates->context() : nullptr, port.protocol->alpn());
  const int64_t bytes = Connection::kBeginBytes + (is_tls ? Connection::kTlsBytes : 0);
  base::ByteBudget::Share charge(port.shared->calls.budget.get(), base::ByteBudget::Use::kCall);
  if (!has_room || !charge.Resize(bytes) || !TakeOrMakePlace(port, ends.address)) {
    port.shared->limit_counts.Add(ReachedLimit::kConnections);
    return;
  }
  ConnectionSet& set = EmptiestSet();
  const auto connection =
      std::make_shared<Connection>(port.shared, *port.protocol, &set, std::move(transport),
                                   std::move(ends), base::MonotonicNs(), std::move(charge));
  if (!set.Add(connection)) Remove(&set, connection->key());
}

void Network::Remove(ConnectionSet* set, uint64_t key) {
  const std::shared_ptr<Connection> gone = set->Remove(key);
  if (gone != nullptr) ReturnPlace(*gone);
}

std::vector<std::shared_ptr<Connection>> Network::All(const ServerShared* whose) {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& set : sets_) {
    const auto some = set->All(whose);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// --- Events ---

bool Network::HandleEvents(size_t group, int timeout_ms, ReceiveSpace* space,
                           std::vector<std::shared_ptr<RunnableCall>>* to_run,
                           std::atomic<int>* idle_count) {
  ConnectionSet& set = *sets_[group];
  std::array<epoll_event, kEventsPerLook> events;
  // A thread that waits takes one event, and leaves the others to the other threads.
  const int count = set.Wait(timeout_ms, events.data(), timeout_ms < 0 ? 1 : kEventsPerLook);
  if (idle_count != nullptr) idle_count->fetch_sub(1);
  bool is_woken = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key == ConnectionSet::kWakeKey) {
      is_woken = true;
    } else if (key >= ConnectionSet::kListenerKeysBegin) {
      AcceptUnlessStopped(key);
    } else {
      Proceed(&set, key, events[i].events, space, to_run);
    }
  }
  return is_woken;
}

void Network::Proceed(ConnectionSet* set, uint64_t key, uint32_t events, ReceiveSpace* space,
                      std::vector<std::shared_ptr<RunnableCall>>* to_run) {
  const std::shared_ptr<Connection> connection = set->Find(key);
  if (connection == nullptr) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection->NoteHangUp();
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) connection->NoteReset();
  connection->Proceed(space, to_run);
  if (connection->is_closed()) return Remove(set, key);
  if (!connection->has_more()) return;
  set->ArmAgain(*connection);
}

void Network::CheckTimes(int64_t now_ns) {
  for (const auto& set : sets_) {
    for (const auto& connection : set->All(nullptr)) {
      // Otherwise no thread would handle what has arrived before the client sends more.
      if (connection->CheckTimes(now_ns)) set->ArmAgain(*connection);
    }
  }
}

// --- The stop ---

void Network::StopListening(const ServerShared& whose) {
  Port& port = &whose == other_.shared.get() ? other_ : grpc_;
  {
    // From here on no other thread accepts: its connection would come after the others were asked
    // to go.
    const std::unique_lock<std::shared_mutex> lock(listening_mutex_);
    port.has_stopped_listening = true;
  }
  for (size_t i = 0; i < port.listeners.count(); ++i) {
    const int fd = port.listeners.fd(i);
    for (const auto& set : sets_) set->RemoveListener(fd);
    // Connections that wait stay for the next server: this one would only send them away. A
    // shutdown of the socket would end it for all processes that hold it.
    if (port.listeners.is_handed_in(i)) continue;
    // Clients whose connection the kernel has made already count on an answer.
    Accept(&port, i, Listeners::kBacklog);
    (void)shutdown(fd, SHUT_RD);
    Accept(&port, i, Listeners::kBacklog);
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
