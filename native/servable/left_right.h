#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "native/base/sharded.h"

namespace millpond::servable {

// A value that requests read all the time and the control plane replaces now and then.
//
// Read is wait-free: it loads two words, and adds to and subtracts from one counter of the thread's
// own shard, whatever the writer does. Write is for one thread at a time. It waits for the reads
// that saw the old value, and then frees the old value itself. A read takes as long as the function
// passed to Read.
//
// Usage:
//
//   LeftRight<Models> models(std::make_unique<const Models>());
//   // On a request thread:
//   const int limit = models.Read([&](const Models& current) { return LimitOf(current, name); });
//   // On the control thread, or under a mutex of the writers:
//   models.Write(std::make_unique<const Models>(changed));
//
// How it works: each read counts itself in one of two halves, which parity_ chooses, before it
// loads the value. Write exchanges the value first. A read that counts itself after that sees the
// new value. To wait for the earlier reads, Write turns new reads to the other half, and waits
// until the half that was in use is empty. New reads cannot keep it waiting, because they no longer
// count in that half.
//
// The algorithm is the reader side of Left-Right (Ramalhete and Correia, "Left-Right: A Concurrency
// Control Technique with Wait-Free Population Oblivious Reads", 2015). Immutable values replace its
// two instances, so that each change is applied once.
template <typename T>
class LeftRight {
 public:
  explicit LeftRight(std::unique_ptr<const T> value)
      : value_(value.release()), readers_(base::CellCountForRequestThreads()) {}
  ~LeftRight() { delete value_.load(); }
  LeftRight(const LeftRight&) = delete;
  LeftRight& operator=(const LeftRight&) = delete;

  // Returns `read(value)`. `read` must be short and must not call Write.
  template <typename Function>
  auto Read(Function&& read) {
    Readers& mine = readers_.Mine();
    const unsigned parity = parity_.load();
    mine.arrived[parity].fetch_add(1);
    const Departure departure{mine.arrived[parity]};
    return std::forward<Function>(read)(*value_.load());
  }

  // Returns the value that was written last. For the thread that writes.
  const T& Latest() const { return *value_.load(); }

  void Write(std::unique_ptr<const T> value) noexcept {
    const std::unique_ptr<const T> old(value_.exchange(value.release()));
    // Waits for both halves. A reader may read the parity before a flip and arrive after it, so a
    // reader of the old value may count in either half.
    WaitForReaders();
    WaitForReaders();
  }

 private:
  struct alignas(base::kCacheLineBytes) Readers {
    std::atomic<int64_t> arrived[2] = {};
  };

  struct Departure {
    ~Departure() { arrived.fetch_sub(1); }
    std::atomic<int64_t>& arrived;
  };

  // Makes new readers count in the other half, and returns once the half that was in use is empty.
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
  base::Sharded<Readers> readers_;
};

}  // namespace millpond::servable
