#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace millpond::servable {

// The time of a run over its rows, learned from runs: a fixed part and a part for each row. It
// bounds how many rows a batch should have.
//
// Runs are collected by their number of rows, in powers of two, with a mean of each class that
// forgets (1/16 for each run after the first 16) and that a single interrupted run does not move
// far. The line is fitted to the means by least squares, weighted by their relative error. So a
// class that is rare now keeps its say, and the fit stays well-conditioned if all batches are
// alike.
//
// Thread: any. Record takes a lock if it is free; if not, the run is not recorded. The limits are
// read without a lock.
class BatchCost {
 public:
  // A batch is worth extending until its fixed cost is this part of its run. From there on, longer
  // batches only make their requests wait.
  static constexpr int64_t kWorthShare = 16;
  // The same while another thread is free. A batch of twice the rows takes longer than two batches
  // side by side by the time of these rows, and saves no more than the fixed cost.
  static constexpr int64_t kWorthShareBesideFree = 2;

  // A batch that takes up to this time may always form.
  static constexpr int64_t kQuickNs = 1'000'000;

  // `rows_max` is the most rows of a run. `run_ns_max` is the time that a run should take at most;
  // 0: any. If it is less than twice the fixed cost, twice the fixed cost is the bound, because
  // requests of a slow model would wait even longer if each had a run of its own.
  BatchCost(int64_t rows_max, int64_t run_ns_max);

  void Record(int64_t rows, int64_t run_ns);

  // The rows up to which joining requests is worth it, within rows_max and run_ns_max. No more than
  // twice the rows of the largest run so far, because the cost of more rows is unknown. At least 1.
  int64_t joined_rows_max(bool is_thread_free) const {
    return (is_thread_free ? joined_rows_beside_free_ : joined_rows_max_)
        .load(std::memory_order_relaxed);
  }
  // Returns true if `count` requests of `rows` each should share a run while `waiting_per_thread`
  // requests wait. Each request that joins spares the requests behind it the fixed cost, and makes
  // the requests of the batch wait for its rows. The mean time of all falls if waiting * fixed is
  // more than count * (rows' time - fixed) / 2; but the tail consists of the batch's own requests,
  // so the threshold is four times higher. A batch that takes up to kQuickNs may always form.
  bool IsWorthTheWait(int64_t count, int64_t rows, int64_t waiting_per_thread) const {
    if (count * rows <= quick_rows_.load(std::memory_order_relaxed)) return true;
    const double fixed_rows = fixed_rows_.load(std::memory_order_relaxed);
    return static_cast<double>(waiting_per_thread) * fixed_rows >=
           2 * static_cast<double>(count) * (static_cast<double>(rows) - fixed_rows);
  }
  // The rows that a run may have within rows_max and run_ns_max, as far as that is known. At least
  // 1.
  int64_t run_rows_max() const { return run_rows_max_.load(std::memory_order_relaxed); }

 private:
  struct Class {
    int64_t run_count = 0;
    double rows = 0;  // means; 0: no run yet
    double run_ns = 0;
  };

  void Fit();  // needs mutex_

  const int64_t rows_max_;
  const int64_t run_ns_max_;
  std::mutex mutex_;
  std::array<Class, 24> classes_;
  int64_t largest_rows_ = 0;
  std::atomic<int64_t> joined_rows_max_;
  std::atomic<int64_t> joined_rows_beside_free_;
  std::atomic<int64_t> run_rows_max_;
  std::atomic<int64_t> quick_rows_{INT64_MAX};  // the rows of a run of kQuickNs
  std::atomic<double> fixed_rows_;              // the rows that take as long as the fixed part
};

}  // namespace millpond::servable
