#pragma once

#include <cstdint>

namespace millpond::metrics {

// The time between two samples of the recorders, about a second. It is shorter if a caller cut it,
// and longer if the sample came late.
struct TimeSpan {
  int64_t begin_ns;
  int64_t end_ns;

  // Returns true if most of the span lies within the longer time. A longer time that begins and
  // ends at the bounds of spans therefore consists of exactly the spans between them.
  bool IsMostlyWithin(int64_t from_ns, int64_t to_ns) const {
    const int64_t middle_ns = begin_ns + (end_ns - begin_ns) / 2;
    return from_ns <= middle_ns && middle_ns < to_ns;
  }
};

}  // namespace millpond::metrics
