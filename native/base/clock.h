#pragma once

#include <cstdint>

namespace millpond::base {

// Nanoseconds of CLOCK_MONOTONIC. About 20 ns a call (vDSO).
int64_t MonotonicNs();

// The same clock at the kernel's tick (1 to 4 ms) for a few nanoseconds a call: for checks that
// run between the kernels of a graph.
int64_t CoarseMonotonicNs();

// Waits; the only sleep there is, for ends that nobody can be told of.
void SleepNs(int64_t duration_ns);

}  // namespace millpond::base
