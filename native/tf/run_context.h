#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/base/byte_budget.h"
#include "native/base/limits.h"
#include "native/base/reply_buffer.h"

namespace millpond::tf {

// What can end a run before its graph is through, and what bounds its reply. Outlives the run.
//
// A run is inline: each kernel of the graph is computed on the calling thread, and RunOptions'
// timeout_in_ms does not reach it (Session looks at it only once the executor has returned). So
// ServableDevice asks this context before each kernel instead.
struct RunContext {
  static constexpr int64_t kNoDeadline = INT64_MAX;

  int64_t deadline_ns = kNoDeadline;                // on base::MonotonicNs's clock
  const std::atomic<bool>* is_cancelled = nullptr;  // may be null
  size_t reply_bytes_max = base::kMaxReplyBytes;
  base::ByteBudget* budget = nullptr;  // of the server; null: nothing is counted

  // What bounds the reply of the run.
  base::ReplyLimits reply_limits() const {
    return {reply_bytes_max, budget, deadline_ns, is_cancelled};
  }
};

}  // namespace millpond::tf
