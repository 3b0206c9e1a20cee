#pragma once

#include <atomic>
#include <cstdint>

namespace millpond::tf {

// What can end a run before its graph is through. Outlives the run.
//
// A run is inline: each kernel of the graph is computed on the calling thread, and RunOptions'
// timeout_in_ms does not reach it (Session looks at it only once the executor has returned). So
// ServableDevice asks this context before each kernel instead.
struct RunContext {
  static constexpr int64_t kNoDeadline = INT64_MAX;

  int64_t deadline_ns = kNoDeadline;                // on base::MonotonicNs's clock
  const std::atomic<bool>* is_cancelled = nullptr;  // may be null
};

}  // namespace millpond::tf
