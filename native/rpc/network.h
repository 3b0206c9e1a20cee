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
#include "native/rpc/connection.h"
#include "native/rpc/grpc_stream.h"
#include "native/rpc/listeners.h"
#include "native/rpc/request_threads.h"

namespace millpond::rpc {

// The ports and the connections of a server, in one epoll set that all threads share. There is a
// port for gRPC and one for another protocol.
//
// Connections are edge-triggered: the kernel wakes one thread for each change. If a connection has
// input left that may be read, ArmAgain has the kernel report it once more. Nothing else arms a
// connection again, so Connection::Proceed must remember each change that a thread sees while
// another thread has the connection's turn.
//
// Thread: HandleEvents: all request threads at once. CheckTimes: the watchdog. Listen and the steps
// of a stop: the control plane, one thread at a time. Wake, WakeFor, port, other_port and
// connection_count: any.
class Network final : public EventSource, public Connection::Waker {
 public:
  // For gRPC's connections, which share `shared`.
  explicit Network(std::shared_ptr<ServerShared> shared) { grpc_.shared = std::move(shared); }
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

  void HandleEvents(int timeout_ms, ReceiveSpace* space,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override;
  void Wake() override;
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
    int64_t connection_count_max = 0;
    Listeners listeners = {};
    bool has_stopped_listening = false;  // guarded by listening_mutex_
  };
  // A place in the table. An event names the place and the generation, because it may come after
  // its connection has gone.
  struct Place {
    std::shared_ptr<Connection> connection;
    uint32_t generation = 0;
  };

  // Implements Connection::Waker.
  void WakeFor(const Connection& connection) override { ArmAgain(connection); }

  base::Status Open();
  base::Status ListenOn(Port* port, const std::vector<std::string>& addresses);
  void AcceptUnlessStopped(uint64_t key);
  void Accept(Port* port, size_t listener, int count_max);
  void Add(const Port& port, const AcceptedClient& client);
  void MakePlace(const Port& port);
  bool MayAdd(const Port& port, const std::string& address);  // needs mutex_
  void Proceed(uint64_t key, uint32_t events, ReceiveSpace* space,
               std::vector<std::shared_ptr<RunnableCall>>* to_run);
  // Has the events of the connection's socket reported again.
  void ArmAgain(const Connection& connection);
  std::shared_ptr<Connection> Find(uint64_t key);
  void Remove(uint64_t key);
  // Returns the connections that share `whose`, or all if it is null.
  std::vector<std::shared_ptr<Connection>> All(const ServerShared* whose);

  const GrpcProtocol grpc_protocol_;
  Port grpc_;
  Port other_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;

  std::shared_mutex listening_mutex_;  // held shared to accept, alone to stop

  std::mutex mutex_;  // guards what follows; held to look up a place
  std::vector<Place> places_;
  std::vector<uint32_t> free_places_;
  std::map<std::string, int64_t> counts_by_address_;
};

}  // namespace millpond::rpc
