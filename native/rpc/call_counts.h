#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace millpond::rpc {

// The calls of a server, and the bytes that they take together. Outlives the objects that are
// counted in it. Thread: any, at once.
struct CallCounts {
  std::atomic<int64_t> live_count{0};     // calls that were begun, and not yet let go
  std::atomic<int64_t> arrived_count{0};  // of them, those whose request has arrived
  // The bytes of calls that no admission counts, because their request has not arrived, their
  // answer waits for its client, or their method is not for models.
  std::atomic<int64_t> open_bytes{0};
};

// Counts one call for its server and for its connection, until the object is destroyed.
//
// Thread: one at a time.
class CallAccount {
 public:
  CallAccount() = default;
  // Borrows both counts. `open_bytes` are as in SetOpenBytes.
  CallAccount(CallCounts* of_server, std::atomic<int64_t>* of_connection, int64_t open_bytes)
      : of_server_(of_server), of_connection_(of_connection) {
    of_server_->live_count.fetch_add(1);
    SetOpenBytes(open_bytes);
  }
  ~CallAccount() {
    if (of_server_ == nullptr) return;
    SetOpenBytes(0);
    if (has_arrived_) of_server_->arrived_count.fetch_sub(1);
    of_server_->live_count.fetch_sub(1);
  }
  CallAccount(CallAccount&& other) noexcept
      : of_server_(std::exchange(other.of_server_, nullptr)),
        of_connection_(other.of_connection_),
        open_bytes_(other.open_bytes_),
        has_arrived_(other.has_arrived_) {}
  CallAccount& operator=(CallAccount&&) = delete;

  void MarkArrived() {
    if (of_server_ == nullptr || std::exchange(has_arrived_, true)) return;
    of_server_->arrived_count.fetch_add(1);
  }
  int64_t open_bytes() const { return open_bytes_; }
  // Sets the bytes for which the call counts as open, see CallCounts.
  void SetOpenBytes(int64_t bytes) {
    const int64_t growth = bytes - open_bytes_;
    if (of_server_ == nullptr || growth == 0) return;
    open_bytes_ = bytes;
    of_server_->open_bytes.fetch_add(growth, std::memory_order_relaxed);
    of_connection_->fetch_add(growth, std::memory_order_relaxed);
  }

 private:
  CallCounts* of_server_ = nullptr;  // null: of no server, or moved from
  std::atomic<int64_t>* of_connection_ = nullptr;
  int64_t open_bytes_ = 0;
  bool has_arrived_ = false;
};

}  // namespace millpond::rpc
