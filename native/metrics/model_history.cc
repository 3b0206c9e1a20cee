#include "native/metrics/model_history.h"

namespace millpond::metrics {

void ModelHistory::Add(TimeSpan span, const LatencySnapshot& latency, int64_t failed_count) {
  if (latency.count() == 0) return;
  second_.count += latency.count();
  second_.failed_count += failed_count;
  spans_.Add(span, {SparseLatency(latency)});
}

void ModelHistory::EndSecond(int64_t at_ns) {
  const LatencySnapshot recent = spans_.Last(kFigureNs, at_ns);
  if (recent.count() > 0) {
    second_.at_ns = at_ns;
    second_.latency = FiguresOf(recent);
    points_.push_back(second_);
  }
  second_ = {};
  Forget(at_ns);
}

void ModelHistory::Forget(int64_t now_ns) {
  while (!points_.empty() && points_.front().at_ns <= now_ns - kKeptNs) points_.pop_front();
  spans_.ForgetUntil(now_ns - spans_kept_ns_);
}

}  // namespace millpond::metrics
