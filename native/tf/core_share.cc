#include "native/tf/core_share.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "native/tf/load_control.h"
#include "tensorflow/core/util/work_sharder.h"

namespace millpond::tf {
namespace {

// The runs of requests. Each run writes both fields, so they share a cache line of their own.
struct alignas(64) Runs {
  std::atomic<int> count{0};
  std::atomic<int64_t> begin_ns{INT64_MIN / 2};  // of the last one
};
Runs runs;

constexpr int64_t kRecentNs = 1'000'000'000;

int CoreCount() {
  static const int count = static_cast<int>(base::AllowedCores().size());
  return count;
}

int TakeShare(bool is_counted) {
  if (!is_counted) return 1;
  runs.begin_ns.store(base::CoarseMonotonicNs(), std::memory_order_relaxed);
  return std::max(CoreCount() / (runs.count.fetch_add(1) + 1), 1);
}

}  // namespace

CoreShareScope::CoreShareScope(int cores_max)
    : is_counted_(!base::IsBackgroundThread() && LoadScope::Current() == nullptr),
      cores_(std::min(TakeShare(is_counted_), cores_max)),
      outer_(tensorflow::GetPerThreadMaxParallelism()) {
  tensorflow::SetPerThreadMaxParallelism(cores_);
}

CoreShareScope::~CoreShareScope() {
  tensorflow::SetPerThreadMaxParallelism(outer_);
  if (is_counted_) runs.count.fetch_sub(1);
}

bool AreRequestsComing() {
  return runs.count.load() > 0 ||
         base::CoarseMonotonicNs() - runs.begin_ns.load(std::memory_order_relaxed) < kRecentNs;
}

int CurrentCoreShare() { return std::max(tensorflow::GetPerThreadMaxParallelism(), 1); }

}  // namespace millpond::tf
