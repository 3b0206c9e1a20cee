#include "native/metrics/model_history.h"

namespace millpond::metrics {

void ModelHistory::Add(TimeSpan span, const LatencySnapshot& latency, int64_t failed_count) {
  if (latency.count() == 0) return;
  second_.count += latency.count();
  second_.failed_count += failed_count;
  spans_.push_back({span, SparseLatency(latency)});
}

void ModelHistory::EndSecond(int64_t at_ns) {
  LatencySnapshot recent;
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    // The last span counts however long it was.
    const bool is_recent = span->time.IsMostlyWithin(at_ns - kFigureNs, at_ns);
    if (!is_recent && span->time.end_ns != at_ns) break;
    span->latency.AddTo(&recent);
  }
  if (recent.count() > 0) {
    second_.at_ns = at_ns;
    second_.latency = FiguresOf(recent);
    points_.push_back(second_);
  }
  second_ = {};
  Forget(at_ns);
}

LatencySnapshot ModelHistory::Between(int64_t from_ns, int64_t to_ns) const {
  LatencySnapshot sum;
  for (const Span& span : spans_) {
    if (span.time.IsMostlyWithin(from_ns, to_ns)) span.latency.AddTo(&sum);
  }
  return sum;
}

void ModelHistory::Forget(int64_t now_ns) {
  while (!points_.empty() && points_.front().at_ns <= now_ns - kKeptNs) points_.pop_front();
  while (!spans_.empty() && spans_.front().time.end_ns <= now_ns - spans_kept_ns_) {
    spans_.pop_front();
  }
}

}  // namespace millpond::metrics
