#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/rpc/certificates.h"
#include "native/rpc/connection.h"
#include "native/rpc/grpc_stream.h"
#include "native/rpc/request_threads.h"

namespace millpond::rpc {

// The listening sockets and the connections of a server, in one epoll set that all threads share.
//
// Connections are edge-triggered: the kernel wakes one thread for each change, and no system call
// arms a connection again. So Connection::Proceed must remember each change that a thread sees
// while another thread has the connection's turn.
//
// Thread: HandleEvents: all request threads at once. CheckTimes: the watchdog. Listen and the steps
// of a stop: the control plane, one thread at a time. Wake, WakeFor, port, other_port and
// connection_count: any.
class Network final : public EventSource, public Connection::Waker {
 public:
  // For gRPC's connections, which share `shared`.
  explicit Network(std::shared_ptr<ServerShared> shared) : grpc_{std::move(shared), &protocol_} {}
  ~Network() override;

  // Listens on each of `addresses`: `HOST:PORT`, port 0 for a free one, `unix:PATH`, or `fd:N`.
  // `certificates` are for the addresses over TCP; null: none. UNAVAILABLE if one of the addresses
  // cannot be listened on. Once.
  //
  // `fd:N` is a handed-in socket: the descriptor N of a socket, over TCP or UNIX, that listens
  // already. The network owns the descriptor from then on. The socket may outlive the network,
  // because other processes may hold it: a stop leaves it listening, and leaves its waiting
  // connections and the file of a UNIX socket to the next server. `own-fd:N` is the same for a
  // socket that no other process holds: a stop ends it.
  base::Status Listen(const std::vector<std::string>& addresses,
                      std::shared_ptr<const ServerCertificates> certificates);
  // The same for the clients of another protocol, which is borrowed, as is what its connections
  // share. At its limit of connections, one that is idle makes place, or else the one whose body
  // comes slowest. Before Listen or after it.
  base::Status ListenFor(const Protocol& protocol, std::shared_ptr<ServerShared> shared,
                         const std::vector<std::string>& addresses);
  // The TCP port of gRPC's first address over TCP; 0 without such an address.
  int port() const { return grpc_.number; }
  // The same of the other protocol.
  int other_port() const { return other_.number; }

  void HandleEvents(int timeout_ms, ReceiveSpace* space,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override;
  void Wake() override;
  void CheckTimes(int64_t now_ns) override;

  // The steps of a stop: no new connections but those that have arrived at a socket of the
  // network's own; no new streams; the end.
  // Each is for the connections that share `whose`.
  void StopListening(const ServerShared& whose);
  void AskToGo(const ServerShared& whose);
  void RefuseNewStreams(const ServerShared& whose);
  bool IsSettled(const ServerShared& whose);                      // all are; see Connection
  bool IsReceiving(const ServerShared& whose, int64_t since_ns);  // see Connection
  void CloseAll(const ServerShared& whose);

  // gRPC's.
  int64_t connection_count() const {
    return grpc_.shared->connection_count.load(std::memory_order_relaxed);
  }

 private:
  // The protocol of some listeners, and the parts that their connections share.
  struct Port {
    std::shared_ptr<ServerShared> shared = nullptr;
    const Protocol* protocol = nullptr;
    std::shared_ptr<const ServerCertificates> certificates = nullptr;
    bool makes_place = false;
    int64_t connection_count_max = 0;
    int number = 0;                      // of the first address over TCP
    bool has_stopped_listening = false;  // guarded by listening_mutex_
  };
  struct Listener {
    Port* port = nullptr;
    int fd = -1;
    bool is_unix = false;
    std::string path;            // of a UNIX socket
    std::optional<ino_t> inode;  // the socket's: it is removed at the end
    bool is_handed_in = false;
  };
  // A place in the table. An event names the place and the generation, because it may come after
  // its connection has gone.
  struct Place {
    std::shared_ptr<Connection> connection;
    uint32_t generation = 0;
  };

  // Network, as a connection sees it.
  void WakeFor(const Connection& connection) override { ArmAgain(connection); }

  base::Status Open();
  base::Status ListenOnAll(Port* port, const std::vector<std::string>& addresses);
  base::Status ListenOn(Port* port, const std::string& address);
  base::Status ListenOnUnix(Port* port, const std::string& path);
  base::Status ListenOnTcp(Port* port, const std::string& address);
  base::Status ListenOnDescriptor(Port* port, const std::string& number, bool is_handed_in);
  base::Status AddListener(Listener listener);
  void AcceptUnlessStopped(const Listener& listener);
  void Accept(const Listener& listener, int count_max);
  void Add(int fd, const Listener& listener, const sockaddr_storage& from);
  void MakePlace(const Port& port);
  bool MayAdd(const Port& port, const std::string& address);  // needs mutex_
  void Proceed(uint64_t key, uint32_t events, ReceiveSpace* space,
               std::vector<std::shared_ptr<RunnableCall>>* to_run);
  // Brings the edge of a connection's socket again.
  void ArmAgain(const Connection& connection);
  std::shared_ptr<Connection> Find(uint64_t key);
  void Remove(uint64_t key);
  // Returns the connections that share `whose`, or all if it is null.
  std::vector<std::shared_ptr<Connection>> All(const ServerShared* whose);
  void RefuseForLackOfDescriptors(const Listener& listener);

  const GrpcProtocol protocol_;
  Port grpc_;
  Port other_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  int spare_fd_ = -1;  // closed to accept, and refuse, one connection when no descriptor is left
  // Never grows beyond what it has room for: threads read it while a port is opened.
  std::vector<Listener> listeners_;

  std::shared_mutex listening_mutex_;  // held shared to accept, alone to stop

  std::mutex mutex_;  // guards what follows; held to look up a place
  std::vector<Place> places_;
  std::vector<uint32_t> free_places_;
  std::map<std::string, int64_t> counts_by_address_;
};

}  // namespace millpond::rpc
