#pragma once

#include <cstdint>

namespace millpond::base {

// Returns how long a background thread should rest after a piece of work that took `wall_ns`, of
// which it spent `cpu_ns` on a core. Pure.
//
// Idle priority keeps a background thread off the cores that requests need, but not off the memory
// bandwidth and the caches that all cores share. If a machine is 80 % busy, a restore at full speed
// takes the remaining 20 % and makes each request slower, until requests queue. A piece that lost
// its core shows that the machine is busy. The thread then rests four times as long as it worked,
// between 2 and 20 ms. On a quiet machine it never rests.
int64_t ThrottleRestNs(int64_t wall_ns, int64_t cpu_ns);

// Measures one piece of work of a background thread and rests after it. Constructed before the
// piece. Does nothing on a thread whose priority was not lowered (thread_priority.h). Thread: one.
// Cost: four clock reads a piece, 0.5 us.
class Throttle {
 public:
  Throttle();

  // Ends the piece, and rests if the machine is busy.
  void Rest() const;

 private:
  int64_t wall_ns_ = 0;
  int64_t cpu_ns_ = 0;
};

}  // namespace millpond::base
