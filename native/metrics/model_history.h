#pragma once

#include <cstdint>
#include <deque>

#include "native/metrics/latency_histogram.h"

namespace millpond::metrics {

// One second of a model's requests.
struct HistoryPoint {
  int64_t at_ns = 0;  // the second's end
  int64_t count = 0;
  int64_t failed_count = 0;
  LatencyFigures latency;  // over the kFigureNs before at_ns
};

// The requests of a model, over all versions and codes, in the last 15 minutes.
//
// Not thread-safe. Memory: 80 bytes a second, and the SparseLatency of each span with requests. The
// spans take 2 MiB if each second fills 250 buckets (thousands of requests between 1 and 30 ms).
// They take 13 MiB if each second fills all buckets.
class ModelHistory {
 public:
  static constexpr int64_t kKeptNs = 900'000'000'000;
  // The time that a point's latency covers: one second has too few requests for a p999.
  static constexpr int64_t kFigureNs = 10'000'000'000;

  // Keeps points for kKeptNs. Keeps the spans that Between reads for `spans_kept_ns`.
  explicit ModelHistory(int64_t spans_kept_ns = kKeptNs) : spans_kept_ns_(spans_kept_ns) {}

  // Adds the requests that ended within `span`, which follows the span before.
  void Add(TimeSpan span, const LatencySnapshot& latency, int64_t failed_count);
  // Ends a second at the end of the last span, and makes a point of all requests added in this
  // second. Makes no point if the kFigureNs before had no requests.
  void EndSecond(int64_t at_ns);

  const std::deque<HistoryPoint>& points() const { return points_; }
  LatencySnapshot Between(int64_t from_ns, int64_t to_ns) const {
    return spans_.Between(from_ns, to_ns);
  }
  bool is_empty() const { return points_.empty() && spans_.is_empty(); }

 private:
  void Forget(int64_t now_ns);

  const int64_t spans_kept_ns_;
  LatencySpans spans_;   // only spans with requests
  HistoryPoint second_;  // the running second
  std::deque<HistoryPoint> points_;
};

}  // namespace millpond::metrics
