#include "native/base/clock.h"

#include <algorithm>
#include <ctime>

namespace millpond::base {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

int64_t ReadNs(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<int64_t>(now.tv_sec) * kNsPerSecond + now.tv_nsec;
}

}  // namespace

int64_t MonotonicNs() { return ReadNs(CLOCK_MONOTONIC); }
int64_t CoarseMonotonicNs() { return ReadNs(CLOCK_MONOTONIC_COARSE); }
int64_t ThreadCpuNs() { return ReadNs(CLOCK_THREAD_CPUTIME_ID); }

int64_t SecondsToNs(double seconds) {
  constexpr double kMaxSeconds = 1e9;
  return static_cast<int64_t>(std::clamp(seconds, 0.0, kMaxSeconds) * 1e9);
}

void SleepNs(int64_t duration_ns) {
  const timespec duration{duration_ns / kNsPerSecond, duration_ns % kNsPerSecond};
  nanosleep(&duration, nullptr);
}

}  // namespace millpond::base
