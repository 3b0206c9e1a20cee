#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace millpond::servable {

// Counts by a count of rows or requests. Class i has more than 2^(i-1) and at most 2^i of them; the
// last class has all larger ones.
using BatchSizeCounts = std::array<int64_t, 16>;

// Counts by a time. Class i has more than 2^(i-1) and at most 2^i µs; the last class has all longer
// ones, from 1 s.
using BatchTimeCounts = std::array<int64_t, 22>;

// The batches of one signature of one version, at one moment. A value. While requests run, its
// counts may differ from one another by the runs that end now.
struct BatchFigures {
  int64_t run_count = 0;            // that answered: batches, requests that ran alone, pieces
  int64_t request_count = 0;        // answered by these runs
  int64_t row_count = 0;            // of these requests; 0 for a request without rows
  int64_t padding_row_count = 0;    // rows added for an allowed batch size
  int64_t failed_batch_count = 0;   // batches whose requests were run one by one; no run above
  int64_t split_request_count = 0;  // requests that were run in pieces
  int64_t wait_ns = 0;              // sum, over the requests: joined, and not yet in their run
  int64_t run_ns = 0;               // sum, over the runs
  BatchSizeCounts by_rows{};        // the runs, by their rows without padding
  BatchSizeCounts by_requests{};    // the runs, by their requests
  BatchTimeCounts by_wait{};        // the requests, by their wait
  BatchTimeCounts by_run{};         // the runs, by their time
};

// One run, for BatchStatistics::RecordRun. Not thread-safe.
class BatchRun {
 public:
  void Add(int64_t wait_ns);

 private:
  friend class BatchStatistics;

  int64_t request_count_ = 0;
  int64_t wait_ns_ = 0;
  BatchTimeCounts by_wait_{};
};

// Counts the batches of one signature. Thread: any; relaxed atomics, about ten for each run.
class BatchStatistics {
 public:
  // Records a run of `rows` rows and `padding_rows` further ones. A request that runs in pieces is
  // added to its first piece only.
  void RecordRun(const BatchRun& run, int64_t rows, int64_t padding_rows, int64_t run_ns);
  void RecordFailedBatch() { failed_batch_count_.fetch_add(1, std::memory_order_relaxed); }
  void RecordSplit() { split_request_count_.fetch_add(1, std::memory_order_relaxed); }

  BatchFigures Figures() const;

 private:
  using Counter = std::atomic<int64_t>;
  template <typename Counts>
  using CountersOf = std::array<Counter, std::tuple_size_v<Counts>>;
  using SizeCounters = CountersOf<BatchSizeCounts>;
  using TimeCounters = CountersOf<BatchTimeCounts>;

  alignas(64) Counter run_count_{0};
  Counter request_count_{0};
  Counter row_count_{0};
  Counter padding_row_count_{0};
  Counter failed_batch_count_{0};
  Counter split_request_count_{0};
  Counter wait_ns_{0};
  Counter run_ns_{0};
  SizeCounters by_rows_{};
  SizeCounters by_requests_{};
  TimeCounters by_wait_{};
  TimeCounters by_run_{};
};

}  // namespace millpond::servable
