#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"

namespace millpond::rpc {

// A client that a listener has accepted. The caller of Accept owns the descriptor.
struct AcceptedClient {
  int fd = -1;
  bool is_unix = false;
  sockaddr_storage address{};  // the client's, unless is_unix
};

// The sockets on which a server listens for the clients of one protocol.
//
// An address is `HOST:PORT` (port 0: a free one), `unix:PATH`, `fd:N` or `own-fd:N`. `fd:N` is a
// handed-in socket: the descriptor N of a socket, over TCP or UNIX, that listens already. The
// listeners own the descriptor. But other processes may hold the socket, so it is left listening:
// its waiting connections, and the file of a UNIX socket, are for the next server. `own-fd:N` is
// the same for a socket that no other process holds: it ends as the others do.
//
// Thread: Accept: any, at once, after Open. All else: the control plane, one thread at a time.
class Listeners {
 public:
  // The most addresses of one protocol. A machine's name has far fewer.
  static constexpr size_t kCountMax = 256;
  // As many connections as the kernel allows wait to be accepted: a burst of clients waits here,
  // and not in the clients' retries.
  static constexpr int kBacklog = 4'096;

  enum class Accepted {
    kClient,
    kNone,     // no client waits
    kRefused,  // one waited, and was closed, because the process has no descriptor left
  };

  Listeners() { listeners_.reserve(kCountMax); }
  // Closes the sockets, and removes the files of UNIX sockets that were opened by their path.
  ~Listeners();
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;

  // Listens on each of `addresses`. UNAVAILABLE if that fails for one of them.
  base::Status Open(const std::vector<std::string>& addresses);

  size_t count() const { return listeners_.size(); }
  int fd(size_t index) const { return listeners_[index].fd; }
  bool is_handed_in(size_t index) const { return listeners_[index].is_handed_in; }
  // The TCP port of the first address over TCP; 0 without such an address.
  int port() const { return port_; }

  // Accepts one client. Never blocks.
  Accepted Accept(size_t index, AcceptedClient* client);

 private:
  struct Listener {
    int fd = -1;
    bool is_unix = false;
    bool is_handed_in = false;
    std::string path = "";            // of a UNIX socket that is removed at the end
    std::optional<ino_t> inode = {};  // of that socket's file
  };

  base::Status OpenOne(const std::string& address);
  base::Status OpenUnix(const std::string& path);
  base::Status OpenTcp(const std::string& address);
  base::Status OpenDescriptor(const std::string& number, bool is_handed_in);
  size_t BindAll(addrinfo* found, const char** reason);
  base::Status Add(Listener listener);
  bool CloseOneClient(int fd);

  // Request threads read the listeners, so they never move: there is room for all from the start.
  std::vector<Listener> listeners_;
  int port_ = 0;
  std::mutex spare_mutex_;
  int spare_fd_ = -1;  // guarded by spare_mutex_; closed to accept, and close, one client
};

}  // namespace millpond::rpc
