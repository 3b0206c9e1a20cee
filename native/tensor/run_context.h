#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/base/byte_budget.h"
#include "native/base/limits.h"
#include "native/base/reply_buffer.h"

namespace millpond::tensor {

// The limits of a run: what may end it before its graph is computed, and the size of its reply.
// Outlives the run. Its thread is the one of the run.
//
// A run is inline: each kernel of the graph is computed on the calling thread. RunOptions'
// timeout_in_ms does not reach such a run, because Session checks it only after the executor has
// returned. So ServableDevice checks this context before each kernel instead.
struct RunContext {
  static constexpr int64_t kNoDeadline = INT64_MAX;

  int64_t deadline_ns = kNoDeadline;                // by base::MonotonicNs's clock
  const std::atomic<bool>* is_cancelled = nullptr;  // may be null
  // False: the run ends before it changes a variable, with PERMISSION_DENIED. For requests that are
  // repeated.
  bool may_write = true;
  size_t reply_bytes_max = base::kMaxReplyBytes;
  base::ByteBudget* budget = nullptr;  // the server's; null: nothing is counted

  // The limits of the reply of the run.
  base::ReplyLimits reply_limits() const {
    return {reply_bytes_max, budget, deadline_ns, is_cancelled};
  }
};

}  // namespace millpond::tensor
