#include "native/tf/core_share.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "native/base/clock.h"
#include "native/base/giving_way.h"
#include "native/base/sharded.h"
#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "native/memory/background_arena.h"
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

thread_local CoreShareScope* current_scope = nullptr;
// Stays true: a thread that gives way serves no other request.
thread_local bool has_given_way = false;

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
    : has_share_(!base::IsBackgroundThread() && LoadScope::Current() == nullptr &&
                 !base::GivesWay()),
      cores_(std::min(TakeShare(has_share_, cores_max), cores_max)),
      outer_(tensorflow::GetPerThreadMaxParallelism()),
      outer_scope_(current_scope) {
  tensorflow::SetPerThreadMaxParallelism(cores_);
  current_scope = this;
}

CoreShareScope::~CoreShareScope() {
  current_scope = outer_scope_;
  tensorflow::SetPerThreadMaxParallelism(outer_);
  GiveUpShare();
}

void CoreShareScope::GiveUpShare() {
  if (std::exchange(has_share_, false)) AllRuns().Mine().count.fetch_sub(1);
}

void CoreShareScope::GiveWay() {
  if (has_given_way || !base::GivesWay()) return;
  has_given_way = true;
  for (auto* scope = current_scope; scope != nullptr; scope = scope->outer_scope_) {
    scope->GiveUpShare();
  }
  tensorflow::SetPerThreadMaxParallelism(1);
  static_cast<void>(memory::UseBackgroundArena());
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
