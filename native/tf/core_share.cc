#include "native/tf/core_share.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "native/base/clock.h"
#include "native/base/sharded.h"
#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "native/tf/load_control.h"
#include "tensorflow/core/util/work_sharder.h"

namespace millpond::tf {
namespace {

// The runs of requests on the threads of a shard.
struct alignas(base::kCacheLineBytes) Runs {
  std::atomic<int> count{0};
  std::atomic<int64_t> begin_ns{INT64_MIN / 2};  // of the last one
};

base::Sharded<Runs>& AllRuns() {
  static auto* const all = new base::Sharded<Runs>(base::CellCountForRequestThreads());
  return *all;
}

constexpr int64_t kRecentNs = 1'000'000'000;

int CoreCount() {
  static const int count = static_cast<int>(base::AllowedCores().size());
  return count;
}

int CountRuns() {
  int count = 0;
  for (const Runs& runs : AllRuns()) count += runs.count.load();
  return count;
}

// A run for one core does not look at other threads' runs, because each look brings their cache
// lines to this core.
int TakeShare(bool is_counted, int cores_max) {
  if (!is_counted) return 1;
  Runs& mine = AllRuns().Mine();
  mine.begin_ns.store(base::CoarseMonotonicNs(), std::memory_order_relaxed);
  mine.count.fetch_add(1);
  return cores_max <= 1 ? 1 : std::max(CoreCount() / std::max(CountRuns(), 1), 1);
}

}  // namespace

CoreShareScope::CoreShareScope(int cores_max)
    : is_counted_(!base::IsBackgroundThread() && LoadScope::Current() == nullptr),
      cores_(std::min(TakeShare(is_counted_, cores_max), cores_max)),
      outer_(tensorflow::GetPerThreadMaxParallelism()) {
  tensorflow::SetPerThreadMaxParallelism(cores_);
}

CoreShareScope::~CoreShareScope() {
  tensorflow::SetPerThreadMaxParallelism(outer_);
  if (is_counted_) AllRuns().Mine().count.fetch_sub(1);
}

bool AreRequestsComing() {
  int64_t last_begin_ns = INT64_MIN / 2;
  for (const Runs& runs : AllRuns()) {
    if (runs.count.load() > 0) return true;
    last_begin_ns = std::max(last_begin_ns, runs.begin_ns.load(std::memory_order_relaxed));
  }
  return base::CoarseMonotonicNs() - last_begin_ns < kRecentNs;
}

int CurrentCoreShare() { return std::max(tensorflow::GetPerThreadMaxParallelism(), 1); }

}  // namespace millpond::tf
