#include "native/tf/run_cost.h"

#include <algorithm>

#include "native/base/bit_width.h"

namespace millpond::tf {
namespace {

size_t ClassOf(int64_t element_count) {
  return static_cast<size_t>(base::BitWidth(std::max<int64_t>(element_count, 1)) - 1);
}

// Follows shorter runs sooner than longer ones. A run is never faster than its kernels, but often
// slower, because its thread had lost its core or its caches were cold.
int64_t Averaged(int64_t known_ns, int64_t thread_ns) {
  constexpr int64_t kShorterShare = 4;
  constexpr int64_t kLongerShare = 16;
  if (known_ns == 0) return thread_ns;
  return known_ns + (thread_ns - known_ns) / (thread_ns < known_ns ? kShorterShare : kLongerShare);
}

// A run that is as short as it was known to be changes nothing. So most runs only read the time,
// and its cache line stays with all cores.
bool IsClearlyShort(int64_t thread_ns) { return thread_ns < RunCost::kWorthSharingNs / 2; }

}  // namespace

bool RunCost::IsWorthSharing(int64_t element_count) const {
  const int64_t known_ns = thread_ns_[ClassOf(element_count)].load(std::memory_order_relaxed);
  return known_ns == 0 || known_ns >= kWorthSharingNs;
}

// Takes a run on several cores as if it had kept all of them busy. So a size whose runs were once
// worth sharing is shared until its runs are clearly shorter. The first run shows only that one
// core needs at least its time. If that is short, the next runs measure it on one core.
void RunCost::Record(int64_t element_count, int core_count, int64_t run_ns) {
  std::atomic<int64_t>& known_ns = thread_ns_[ClassOf(element_count)];
  const int64_t before_ns = known_ns.load(std::memory_order_relaxed);
  const int64_t thread_ns = std::max<int64_t>(run_ns, 1) * (before_ns == 0 ? 1 : core_count);
  if (before_ns != 0 && IsClearlyShort(before_ns) && IsClearlyShort(thread_ns)) return;
  known_ns.store(Averaged(before_ns, thread_ns), std::memory_order_relaxed);
}

}  // namespace millpond::tf
