#pragma once

#include <atomic>
#include <cstdint>

#include "native/base/sharded.h"

namespace millpond::base {

// A count of what threads have taken from a common stock, such as bytes or places, up to a limit.
//
// Theory of operation. If each change wrote to one count, its cache line would travel from core to
// core with each request. So a thread takes a portion more than it needs, and keeps the rest in its
// hand. It takes from its hand and returns to it, and goes to the common count only if its hand is
// empty or too full. What is in hands counts as taken at the limit: nothing is taken beyond it. A
// thread that would be refused first empties all hands, so nothing is refused because another hand
// holds it.
//
// Thread: any. Lock-free. Cost: one atomic of the thread's own cache line for most changes.
// Memory: a cache line for each shard (sharded.h).
class PortionedCount {
 public:
  // A thread has at most twice `portion` in its hand. With 0 each change goes to the common count.
  explicit PortionedCount(int64_t portion);

  // Takes `count` unless more than `limit` would be taken then. Takes nothing and returns false in
  // that case. If threads take at the same time near the limit, each may cause a refusal of
  // another.
  bool Take(int64_t count, int64_t limit);
  void Return(int64_t count);

  // Leaves out what is in hands. Exact while no thread takes or returns; else off by up to twice
  // the portion for each that does.
  int64_t taken() const;

 private:
  struct alignas(kCacheLineBytes) Hand {
    std::atomic<int64_t> count{0};
  };

  static bool TakeFrom(Hand* hand, int64_t count);
  bool TakeCommon(int64_t count, int64_t limit);
  void EmptyHands();

  alignas(kCacheLineBytes) std::atomic<int64_t> common_{0};
  // On a line of its own, because each change reads it, and the count above is written.
  alignas(kCacheLineBytes) const int64_t portion_;
  Sharded<Hand> hands_;
};

}  // namespace millpond::base
