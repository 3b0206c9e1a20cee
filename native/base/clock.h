#pragma once

#include <cstdint>

namespace millpond::base {

// Returns CLOCK_MONOTONIC in nanoseconds. Cost: about 20 ns (vDSO).
int64_t MonotonicNs();

// Returns the same clock as of the kernel's last tick, 1 to 4 ms ago at most. Cost: a few
// nanoseconds. For checks that run between the kernels of a graph.
int64_t CoarseMonotonicNs();

// Returns the processor time of this thread in nanoseconds, without its waits for a core. Cost: a
// system call.
int64_t ThreadCpuNs();

// Returns `seconds` in ns, at least 0 and at most 30 years. So a sum with the time of any clock
// does not overflow.
int64_t SecondsToNs(double seconds);

// Sleeps for `duration_ns`. For waits on an end that no other thread can signal. The data plane
// sleeps nowhere else.
void SleepNs(int64_t duration_ns);

}  // namespace millpond::base
