#pragma once

#include <cstdint>

namespace millpond::metrics {

// From one look at the recorders to the next: about a second, or shorter where somebody cut it, or
// longer where the look came late.
struct TimeSpan {
  int64_t begin_ns;
  int64_t end_ns;

  // Whether it counts as a part of a longer time: where most of it is. A longer time that begins
  // and ends where spans do is so made of just these.
  bool IsMostlyWithin(int64_t from_ns, int64_t to_ns) const {
    const int64_t middle_ns = begin_ns + (end_ns - begin_ns) / 2;
    return from_ns <= middle_ns && middle_ns < to_ns;
  }
};

}  // namespace millpond::metrics
