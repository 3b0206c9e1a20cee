#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "native/metrics/sharded.h"

namespace millpond::servable {

// A value that requests read all the time and the control plane replaces now and then.
//
// Read is wait-free: two counters of the thread's own shard and one load, whatever the writer does.
// Write is for one thread at a time; it waits for the reads that saw the old value, each as long as
// the function passed to Read, and frees the old value itself.
//
// The algorithm is the reader side of Left-Right (Ramalhete and Correia, "Left-Right: A Concurrency
// Control Technique with Wait-Free Population Oblivious Reads", 2015), with immutable values in the
// place of the two instances, so that nothing is applied twice.
template <typename T>
class LeftRight {
 public:
  explicit LeftRight(std::unique_ptr<const T> value)
      : value_(value.release()), readers_(metrics::ShardCountForRequestThreads()) {}
  ~LeftRight() { delete value_.load(); }
  LeftRight(const LeftRight&) = delete;
  LeftRight& operator=(const LeftRight&) = delete;

  // `read(const T&)` must be short and must not call Write.
  template <typename Function>
  auto Read(Function&& read) {
    Readers& mine = readers_.Mine();
    const unsigned parity = parity_.load();
    mine.arrived[parity].fetch_add(1);
    const Departure departure{mine.arrived[parity]};
    return std::forward<Function>(read)(*value_.load());
  }

  void Write(std::unique_ptr<const T> value) {
    const std::unique_ptr<const T> old(value_.exchange(value.release()));
    // Twice, as a reader may have read the parity before one flip and arrive after it.
    WaitForReaders();
    WaitForReaders();
  }

 private:
  struct alignas(metrics::kCacheLineBytes) Readers {
    std::atomic<int64_t> arrived[2] = {};
  };

  struct Departure {
    ~Departure() { arrived.fetch_sub(1); }
    std::atomic<int64_t>& arrived;
  };

  // New readers count in the other half from here on; returns once the half that was in use is
  // empty.
  void WaitForReaders() {
    const unsigned before = parity_.load();
    parity_.store(1 - before);
    while (CountArrived(before) > 0) std::this_thread::yield();
  }

  int64_t CountArrived(unsigned parity) const {
    int64_t count = 0;
    for (const Readers& readers : readers_) count += readers.arrived[parity].load();
    return count;
  }

  std::atomic<const T*> value_;
  std::atomic<unsigned> parity_{0};
  metrics::Sharded<Readers> readers_;
};

}  // namespace millpond::servable
