#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "native/base/status.h"
#include "native/rpc/connection.h"

namespace millpond::rpc {

// The connections of one group of request threads, and the epoll set in which the group waits.
//
// Connections are edge-triggered: the kernel wakes one thread for each change. If a connection has
// input left that may be read, ArmAgain has the kernel report it once more. Nothing else arms a
// connection again, so Connection::Proceed must remember each change that a thread sees while
// another thread has the connection's turn.
//
// Thread: as the network that holds it calls it: Open before all else, the rest from any thread.
class ConnectionSet final : public Connection::Waker {
 public:
  // The key of the event that Wake causes. Keys of listeners are below it, and from
  // kListenerKeysBegin on. Connections have the keys below that.
  static constexpr uint64_t kWakeKey = UINT64_MAX;
  static constexpr uint64_t kListenerKeysBegin = uint64_t{1} << 63U;

  ConnectionSet() = default;
  ~ConnectionSet();
  ConnectionSet(const ConnectionSet&) = delete;
  ConnectionSet& operator=(const ConnectionSet&) = delete;

  // UNAVAILABLE if the process has no descriptor left. A second call does nothing.
  base::Status Open();

  // Waits for up to `timeout_ms` (-1: for ever). Returns the number of events, up to `count_max`.
  int Wait(int timeout_ms, epoll_event* events, int count_max) {
    return epoll_wait(epoll_fd_, events, count_max, timeout_ms);
  }
  // Ends the wait of one thread.
  void Wake();

  // Reports a listener's clients with the event `key`. If several sets have the listener, the
  // kernel wakes a thread of one of them, if it can.
  void AddListener(int fd, uint64_t key);
  void RemoveListener(int fd);

  // Gives the connection its key, and reports its events. Returns false if the kernel cannot: the
  // caller then removes the connection.
  bool Add(std::shared_ptr<Connection> connection);
  // Null if the connection has gone.
  std::shared_ptr<Connection> Find(uint64_t key);
  // Returns the connection that was removed; null if another thread has removed it.
  std::shared_ptr<Connection> Remove(uint64_t key);
  // Has the events of the connection's socket reported again.
  void ArmAgain(const Connection& connection);
  // Implements Connection::Waker.
  void WakeFor(const Connection& connection) override { ArmAgain(connection); }

  // Returns the connections that share `whose`, or all if it is null.
  std::vector<std::shared_ptr<Connection>> All(const ServerShared* whose);
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  // A place in the table. An event names the place and the generation, because it may come after
  // its connection has gone.
  struct Place {
    std::shared_ptr<Connection> connection;
    uint32_t generation = 0;
  };

  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::atomic<int64_t> count_{0};

  std::mutex mutex_;  // guards what follows; held to look up a place
  std::vector<Place> places_;
  std::vector<uint32_t> free_places_;
};

}  // namespace millpond::rpc
