#include "native/tf/core_share.h"

#include <algorithm>
#include <atomic>

#include "native/base/thread_cores.h"
#include "native/base/thread_priority.h"
#include "tensorflow/core/util/work_sharder.h"

namespace millpond::tf {
namespace {

// Each run changes it twice, so it has a cache line of its own.
alignas(64) std::atomic<int> run_count{0};

int CoreCount() {
  static const int count = static_cast<int>(base::AllowedCores().size());
  return count;
}

int TakeShare(bool is_counted) {
  return is_counted ? std::max(CoreCount() / (run_count.fetch_add(1) + 1), 1) : 1;
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

int CurrentCoreShare() { return std::max(tensorflow::GetPerThreadMaxParallelism(), 1); }

}  // namespace millpond::tf
