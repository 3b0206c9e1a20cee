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

// The place of one call among those that live. It is given up when the object is destroyed.
class LiveCall {
 public:
  LiveCall() = default;
  explicit LiveCall(CallCounts* counts) : counts_(counts) { counts_->live_count.fetch_add(1); }
  ~LiveCall() {
    if (counts_ == nullptr) return;
    if (has_arrived_) counts_->arrived_count.fetch_sub(1);
    counts_->live_count.fetch_sub(1);
  }
  LiveCall(LiveCall&& other) noexcept
      : counts_(std::exchange(other.counts_, nullptr)), has_arrived_(other.has_arrived_) {}
  LiveCall& operator=(LiveCall&&) = delete;

  void MarkArrived() {
    if (counts_ == nullptr || std::exchange(has_arrived_, true)) return;
    counts_->arrived_count.fetch_add(1);
  }

 private:
  CallCounts* counts_ = nullptr;
  bool has_arrived_ = false;
};

// The bytes for which one call counts as open, in all and on its connection.
class OpenCallBytes {
 public:
  OpenCallBytes() = default;
  // Borrows both counts.
  OpenCallBytes(std::atomic<int64_t>* of_all, std::atomic<int64_t>* of_connection)
      : of_all_(of_all), of_connection_(of_connection) {}
  ~OpenCallBytes() { Resize(0); }
  OpenCallBytes(OpenCallBytes&& other) noexcept
      : of_all_(other.of_all_),
        of_connection_(other.of_connection_),
        bytes_(std::exchange(other.bytes_, 0)) {}
  OpenCallBytes& operator=(OpenCallBytes&&) = delete;

  int64_t bytes() const { return bytes_; }
  void Resize(int64_t bytes) {
    const int64_t growth = bytes - std::exchange(bytes_, bytes);
    if (growth == 0) return;
    of_all_->fetch_add(growth, std::memory_order_relaxed);
    of_connection_->fetch_add(growth, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t>* of_all_ = nullptr;
  std::atomic<int64_t>* of_connection_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace millpond::rpc
