#include "native/servable/batch_cost.h"

#include <algorithm>
#include <cmath>

#include "native/base/bit_width.h"

namespace millpond::servable {
namespace {

// A mean covers about this many last runs, or all runs if there are fewer.
constexpr int64_t kRemembered = 16;
// On a busy machine a run may lose its core for much longer than it takes. So a run counts as at
// most this many times the mean; and while runs are few, the mean is at most this many times the
// last one.
constexpr double kOutlier = 2;

// Returns the class of a run: the last i with 2^i <= `rows`, and at most the last class.
size_t ClassFrom(int64_t rows, size_t class_count) {
  return std::min(static_cast<size_t>(base::BitWidth(rows) - 1), class_count - 1);
}

int64_t Bounded(double rows, int64_t rows_max) {
  return rows >= static_cast<double>(rows_max) ? rows_max
                                               : std::max<int64_t>(static_cast<int64_t>(rows), 1);
}

}  // namespace

BatchCost::BatchCost(int64_t rows_max, int64_t run_ns_max)
    : rows_max_(std::max<int64_t>(rows_max, 1)),
      run_ns_max_(run_ns_max),
      joined_rows_max_(std::min<int64_t>(rows_max_, 2)),
      joined_rows_beside_free_(1),
      run_rows_max_(rows_max_),
      fixed_rows_(INFINITY) {}

void BatchCost::Record(int64_t rows, int64_t run_ns) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || rows < 1) return;
  Class& of_rows = classes_[ClassFrom(rows, classes_.size())];
  of_rows.run_count += 1;
  const bool is_new = of_rows.run_count <= kRemembered;
  const double weight = 1 / static_cast<double>(is_new ? of_rows.run_count : kRemembered);
  auto counted_ns = static_cast<double>(std::max<int64_t>(run_ns, 1));
  if (of_rows.run_count > 1) {
    if (is_new) of_rows.run_ns = std::min(of_rows.run_ns, kOutlier * counted_ns);
    counted_ns = std::min(counted_ns, kOutlier * of_rows.run_ns);
  }
  of_rows.rows += (static_cast<double>(rows) - of_rows.rows) * weight;
  of_rows.run_ns += (counted_ns - of_rows.run_ns) * weight;
  largest_rows_ = std::max(largest_rows_, rows);
  Fit();
}

void BatchCost::Fit() {
  double sum_w = 0;
  double sum_x = 0;
  double sum_y = 0;
  double sum_xx = 0;
  double sum_xy = 0;
  for (const Class& each : classes_) {
    if (each.run_ns == 0) continue;
    const double w = 1 / (each.run_ns * each.run_ns);
    sum_w += w;
    sum_x += w * each.rows;
    sum_y += w * each.run_ns;
    sum_xx += w * each.rows * each.rows;
    sum_xy += w * each.rows * each.run_ns;
  }
  const double spread = sum_w * sum_xx - sum_x * sum_x;
  // With one class, all of its time may be a fixed cost, which only a larger run shows.
  const bool is_line = spread > 1e-9 * sum_w * sum_xx;
  const double row_ns = is_line ? std::max((sum_w * sum_xy - sum_x * sum_y) / spread, 0.0) : 0;
  const double fixed_ns = std::max((sum_y - row_ns * sum_x) / sum_w, 0.0);
  const double rows_of_fixed_cost = row_ns > 0 ? fixed_ns / row_ns : INFINITY;
  const double run_ns_max = std::max(static_cast<double>(run_ns_max_), 2 * fixed_ns);
  const bool is_bounded = run_ns_max_ > 0 && row_ns > 0;
  const double in_time = is_bounded ? (run_ns_max - fixed_ns) / row_ns : INFINITY;
  const int64_t known_rows = 2 * largest_rows_;
  fixed_rows_.store(rows_of_fixed_cost, std::memory_order_relaxed);
  const double quick_rows = row_ns > 0 ? (kQuickNs - fixed_ns) / row_ns : INFINITY;
  quick_rows_.store(Bounded(quick_rows, INT64_MAX), std::memory_order_relaxed);
  run_rows_max_.store(Bounded(in_time, rows_max_), std::memory_order_relaxed);
  const auto worth = [&](int64_t share) {
    const double rows = rows_of_fixed_cost * static_cast<double>(share - 1);
    return std::min(Bounded(std::min(in_time, rows), rows_max_), known_rows);
  };
  joined_rows_max_.store(worth(kWorthShare), std::memory_order_relaxed);
  joined_rows_beside_free_.store(worth(kWorthShareBesideFree), std::memory_order_relaxed);
}

}  // namespace millpond::servable
