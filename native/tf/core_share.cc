#include "native/tf/core_share.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "tensorflow/core/util/work_sharder.h"

namespace millpond::tf {
namespace {

// Each run changes it twice, so it has a cache line of its own.
alignas(64) std::atomic<int> run_count{0};
std::atomic<int64_t> run_begin_ns{INT64_MIN / 2};  // of the last run; beside run_count in its line

constexpr int64_t kRecentNs = 1'000'000'000;

int CoreCount() {
  static const int count = static_cast<int>(base::AllowedCores().size());
  return count;
}

int TakeShare(bool is_counted) {
  if (!is_counted) return 1;
  run_begin_ns.store(base::CoarseMonotonicNs(), std::memory_order_relaxed);
  return std::max(CoreCount() / (run_count.fetch_add(1) + 1), 1);
}

}  // namespace

CoreShareScope::CoreShareScope()
    : is_counted_(!base::IsBackgroundThread()),
      cores_(TakeShare(is_counted_)),
      outer_(tensorflow::GetPerThreadMaxParallelism()) {
  tensorflow::SetPerThreadMaxParallelism(cores_);
}

CoreShareScope::~CoreShareScope() {
  tensorflow::SetPerThreadMaxParallelism(outer_);
  if (is_counted_) run_count.fetch_sub(1);
}

bool AreRequestsComing() {
  return run_count.load() > 0 ||
         base::CoarseMonotonicNs() - run_begin_ns.load(std::memory_order_relaxed) < kRecentNs;
}

int CurrentCoreShare() { return std::max(tensorflow::GetPerThreadMaxParallelism(), 1); }

}  // namespace millpond::tf
