#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "native/metrics/latency_histogram.h"
#include "native/metrics/sparse_latency.h"
#include "native/metrics/time_span.h"

namespace millpond::metrics {

// One second of a model's requests.
struct HistoryPoint {
  int64_t at_ns = 0;  // its end
  int64_t count = 0;
  int64_t failed_count = 0;
  LatencyFigures latency;  // over the kFigureNs before at_ns
};

// What a model's requests, of all versions and codes, did in the last 15 minutes.
//
// Not thread-safe. Memory: 80 bytes a second, and the SparseLatency of each span that had requests:
// 2 MiB where each second fills 250 buckets (thousands of requests between 1 and 30 ms), 13 MiB if
// each filled all.
class ModelHistory {
 public:
  static constexpr int64_t kKeptNs = 900'000'000'000;
  // What a point's latency is over: one second has too few requests for a p999.
  static constexpr int64_t kFigureNs = 10'000'000'000;

  // Keeps points for kKeptNs, and the spans that Between asks for so long.
  explicit ModelHistory(int64_t spans_kept_ns = kKeptNs) : spans_kept_ns_(spans_kept_ns) {}

  // The requests that ended within `span`, which follows the one before.
  void Add(TimeSpan span, const LatencySnapshot& latency, int64_t failed_count);
  // Ends a second at the end of the last span: the point of all that was added since the last one.
  // A second without requests, and with none in the kFigureNs before, has no point.
  void EndSecond(int64_t at_ns);

  const std::deque<HistoryPoint>& points() const { return points_; }
  LatencySnapshot Between(int64_t from_ns, int64_t to_ns) const;
  bool is_empty() const { return points_.empty() && spans_.empty(); }

 private:
  struct Span {
    TimeSpan time;
    SparseLatency latency;
  };

  void Forget(int64_t now_ns);

  const int64_t spans_kept_ns_;
  std::deque<Span> spans_;  // those with requests
  HistoryPoint second_;     // the one that runs
  std::deque<HistoryPoint> points_;
};

}  // namespace millpond::metrics
