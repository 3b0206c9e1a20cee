#include "native/base/throttle.h"

#include <algorithm>

#include "native/base/clock.h"
#include "native/base/thread_priority.h"

namespace millpond::base {
namespace {

// The time off the core that interrupts and the clock reads themselves cost a piece that kept its
// core.
constexpr int64_t kNoiseNs = 50'000;
constexpr int64_t kRestRatio = 4;
// The shortest rest. A restore's piece takes 0.1 ms: if every fifth piece loses its core, the
// restore still reads about 500 MB/s.
constexpr int64_t kShortestRestNs = 2'000'000;
// The longest rest. A piece may take seconds, as a large model's warm-up request does, and a rest
// of the same length would only delay the load.
constexpr int64_t kLongestRestNs = 20'000'000;

}  // namespace

int64_t ThrottleRestNs(int64_t wall_ns, int64_t cpu_ns) {
  const bool lost_its_core = wall_ns - cpu_ns > kNoiseNs;
  return lost_its_core ? std::clamp(cpu_ns * kRestRatio, kShortestRestNs, kLongestRestNs) : 0;
}

Throttle::Throttle() {
  if (!IsBackgroundThread()) return;
  wall_ns_ = MonotonicNs();
  cpu_ns_ = ThreadCpuNs();
}

void Throttle::Rest() const {
  if (!IsBackgroundThread()) return;
  const int64_t rest_ns = ThrottleRestNs(MonotonicNs() - wall_ns_, ThreadCpuNs() - cpu_ns_);
  if (rest_ns > 0) SleepNs(rest_ns);
}

}  // namespace millpond::base
