#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"

namespace tsl {
class ProfilerSession;
}  // namespace tsl

namespace millpond::tf {

// What a trace records.
struct TraceOptions {
  // 1: steps; 2: costly ops as well; 3: every op and TensorFlow's own work.
  int host_level = 2;
  bool includes_dataset_ops = true;
};

// How often an event of one name was recorded, and how long all of them took.
struct EventTotal {
  std::string name;
  int64_t count = 0;
  int64_t total_ns = 0;
};

// What was recorded.
struct Trace {
  int64_t event_count = 0;
  std::string xspace;              // a serialized tensorflow.profiler.XSpace
  std::vector<EventTotal> totals;  // the longest totals first
};

// What becomes of the recorded events.
struct TraceResult {
  bool has_xspace = true;
  size_t total_count_max = 0;  // of Trace::totals
  // XSpace's own list of warnings gets this one; empty: none.
  std::string warning;
  // A larger XSpace is RESOURCE_EXHAUSTED.
  size_t xspace_bytes_max = 0;
};

// Records what TensorFlow runs in this process, from Start to Collect or the end of its life.
// While no session runs, TensorFlow's kernels look at one atomic and record nothing.
//
// Thread: any, one at a time. Starting and ending take no lock that a request takes.
class TraceSession {
 public:
  // ALREADY_EXISTS if another session runs in this process.
  static base::StatusOr<std::unique_ptr<TraceSession>> Start(const TraceOptions& options);
  ~TraceSession();
  TraceSession(const TraceSession&) = delete;
  TraceSession& operator=(const TraceSession&) = delete;

  // Ends the recording. FAILED_PRECONDITION if it has been collected or dropped.
  base::StatusOr<Trace> Collect(const TraceResult& result);
  // Ends the recording if it has not ended, and forgets it.
  void Drop();

 private:
  explicit TraceSession(std::unique_ptr<tsl::ProfilerSession> session);

  std::unique_ptr<tsl::ProfilerSession> session_;  // null once collected or dropped
};

}  // namespace millpond::tf
