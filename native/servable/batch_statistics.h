#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace millpond::servable {

// The number of runs by a count of rows or requests. Class i counts the runs with more than 2^(i-1)
// and at most 2^i of them; the last class counts all larger ones.
using BatchSizeCounts = std::array<int64_t, 16>;

// The batches of one signature of one version, at one moment. A value.
struct BatchFigures {
  int64_t run_count = 0;            // runs of requests: batches, and requests that ran alone
  int64_t request_count = 0;        // answered by these runs
  int64_t row_count = 0;            // of these requests
  int64_t padding_row_count = 0;    // rows added for an allowed batch size
  int64_t failed_batch_count = 0;   // batches whose requests were run one by one
  int64_t split_request_count = 0;  // requests that were run in pieces
  int64_t wait_ns = 0;              // sum, over the requests: joined, and not running yet
  int64_t run_ns = 0;               // sum, over the runs
  BatchSizeCounts by_rows{};
  BatchSizeCounts by_requests{};
};

// Counts the batches of one signature. Thread: any; relaxed atomics, a few for each run.
class BatchStatistics {
 public:
  void RecordRun(int64_t requests, int64_t rows, int64_t padding_rows, int64_t wait_ns,
                 int64_t run_ns);
  void RecordFailedBatch() { failed_batch_count_.fetch_add(1, std::memory_order_relaxed); }
  void RecordSplit() { split_request_count_.fetch_add(1, std::memory_order_relaxed); }

  BatchFigures Figures() const;

 private:
  using Counter = std::atomic<int64_t>;
  using Counters = std::array<Counter, std::tuple_size_v<BatchSizeCounts>>;

  alignas(64) Counter run_count_{0};
  Counter request_count_{0};
  Counter row_count_{0};
  Counter padding_row_count_{0};
  Counter failed_batch_count_{0};
  Counter split_request_count_{0};
  Counter wait_ns_{0};
  Counter run_ns_{0};
  Counters by_rows_{};
  Counters by_requests_{};
};

}  // namespace millpond::servable
