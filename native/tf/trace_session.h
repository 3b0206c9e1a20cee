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

// The contents of a trace.
struct TraceOptions {
  // 1: steps; 2: also costly ops; 3: every op and TensorFlow's own work.
  int host_level = 2;
  bool includes_dataset_ops = true;
};

// The number of events with one name, and the sum of their durations.
struct EventTotal {
  std::string name;
  int64_t count = 0;
  int64_t total_ns = 0;
};

// A recorded trace.
struct Trace {
  int64_t event_count = 0;
  std::string xspace;              // a serialized tensorflow.profiler.XSpace
  std::vector<EventTotal> totals;  // the longest totals first
};

// The results that Collect makes from the recorded events.
struct TraceResult {
  bool has_xspace = true;
  size_t total_count_max = 0;  // the most totals in Trace::totals
  // Added to XSpace's own list of warnings unless empty.
  std::string warning;
  // The largest XSpace; a larger one is RESOURCE_EXHAUSTED.
  size_t xspace_bytes_max = 0;
};

// Records TensorFlow's work in this process, from Start to Collect or to the session's destruction.
// While no session runs, TensorFlow's kernels read one atomic and record nothing.
//
// Thread: any, one at a time. Starting and ending take no lock that a request takes.
class TraceSession {
 public:
  // Starts recording. Returns ALREADY_EXISTS if another session runs in this process.
  static base::StatusOr<std::unique_ptr<TraceSession>> Start(const TraceOptions& options);
  ~TraceSession();
  TraceSession(const TraceSession&) = delete;
  TraceSession& operator=(const TraceSession&) = delete;

  // Ends the recording and returns it. Returns FAILED_PRECONDITION if it was collected or dropped
  // before.
  base::StatusOr<Trace> Collect(const TraceResult& result);
  // Ends the recording if it has not ended, and discards it.
  void Drop();

 private:
  explicit TraceSession(std::unique_ptr<tsl::ProfilerSession> session);

  std::unique_ptr<tsl::ProfilerSession> session_;  // null once collected or dropped
};

}  // namespace millpond::tf
