#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/rpc/certificates.h"
#include "native/rpc/connection_set.h"
#include "native/rpc/grpc_stream.h"
#include "native/rpc/listeners.h"
#include "native/rpc/place_limits.h"
#include "native/rpc/request_threads.h"

namespace millpond::rpc {

// The ports and the connections of a server. There is a port for gRPC and one for another protocol.
// Each group of request threads has a set of connections. A new connection goes to the set with the
// fewest, whatever thread accepts it, and stays there.
//
// Thread: HandleEvents: all request threads at once. CheckTimes: the watchdog. Listen and the steps
// of a stop: the control plane, one thread at a time. Wake, port, other_port and connection_count:
// any.
class Network final : public EventSource {
 public:
  // For gRPC's connections, which share `shared`.
  explicit Network(std::shared_ptr<ServerShared> shared, size_t group_count = 1);
  ~Network() override;

  // Listens for gRPC on each of `addresses`, see Listeners. `certificates` are for the addresses
  // over TCP; null: none. UNAVAILABLE if one of the addresses cannot be listened on. Once.
  base::Status Listen(const std::vector<std::string>& addresses,
                      std::shared_ptr<const ServerCertificates> certificates);
  // The same for the clients of another protocol, which is borrowed. At its limit of connections,
  // one that is idle makes place, or else the one whose body comes slowest. Before Listen or after
  // it.
  base::Status ListenFor(const Protocol& protocol, std::shared_ptr<ServerShared> shared,
                         const std::vector<std::string>& addresses,
                         std::shared_ptr<const ServerCertificates> certificates);
  // The TCP port of gRPC's first address over TCP; 0 without such an address.
  int port() const { return grpc_.listeners.port(); }
  // The same for the other protocol.
  int other_port() const { return other_.listeners.port(); }

  bool HandleEvents(size_t group, int timeout_ms, ReceiveSpace* space,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override;
  void Wake(size_t group) override { sets_[group]->Wake(); }
  void CheckTimes(int64_t now_ns) override;

  // The steps of a stop, each for the connections that share `whose`: no new connections, but those
  // that have arrived at a socket of the network's own; no new streams; the end.
  void StopListening(const ServerShared& whose);
  void AskToGo(const ServerShared& whose);
  void RefuseNewStreams(const ServerShared& whose);
  bool IsSettled(const ServerShared& whose);                      // true if all connections are
  bool IsReceiving(const ServerShared& whose, int64_t since_ns);  // true if one connection is
  void CloseAll(const ServerShared& whose);

  // The open connections of gRPC.
  int64_t connection_count() const {
    return grpc_.shared->connection_count.load(std::memory_order_relaxed);
  }

 private:
  // The listeners of one protocol, and the parts that their connections share.
  struct Port {
    std::shared_ptr<ServerShared> shared = nullptr;
    const Protocol* protocol = nullptr;
    std::shared_ptr<const ServerCertificates> certificates = nullptr;
    bool makes_place = false;
    PlaceLimits places = {};
    Listeners listeners = {};
    bool has_stopped_listening = false;  // guarded by listening_mutex_
  };
  base::Status Open();
  base::Status ListenOn(Port* port, const std::vector<std::string>& addresses);
  void AcceptUnlessStopped(uint64_t key);
  void Accept(Port* port, size_t listener, int count_max);
  void Add(const Port& port, const AcceptedClient& client);
  bool MakePlace(const Port& port, Room room);
  void GiveUpSlowest(const Port& port, int64_t now_ns);
  bool FindRoom(const Port& port, int descriptor);
  bool TakeOrMakePlace(const Port& port, const std::string& address);
  bool TakePlace(const Port& port, const std::string& address);
  void ReturnPlace(const Connection& connection);
  ConnectionSet& EmptiestSet();
  void Proceed(ConnectionSet* set, uint64_t key, uint32_t events, ReceiveSpace* space,
               std::vector<std::shared_ptr<RunnableCall>>* to_run);
  void Remove(ConnectionSet* set, uint64_t key);
  // Returns the connections of all sets, see ConnectionSet.
  std::vector<std::shared_ptr<Connection>> All(const ServerShared* whose);

  const GrpcProtocol grpc_protocol_;
  Port grpc_;
  Port other_;
  std::vector<std::unique_ptr<ConnectionSet>> sets_;  // of each group

  std::shared_mutex listening_mutex_;  // held shared to accept, alone to stop

  std::mutex places_mutex_;  // held to add and to remove a connection
  std::map<std::string, int64_t> counts_by_address_;
};

}  // namespace millpond::rpc
