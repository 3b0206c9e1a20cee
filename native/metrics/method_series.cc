#include "native/metrics/method_series.h"

#include <algorithm>
#include <utility>

namespace millpond::metrics {

MethodFigures& MethodFigures::operator+=(const MethodFigures& other) {
  since_start += other.since_start;
  spans.insert(spans.end(), other.spans.begin(), other.spans.end());
  return *this;
}

LatencySnapshot MethodFigures::Within(Phase phase, int64_t window_ns, int64_t sampled_ns) const {
  LatencySnapshot sum;
  for (const auto& span : spans) {
    const bool is_last = span->time.end_ns == sampled_ns;
    if (is_last || span->time.IsMostlyWithin(sampled_ns - window_ns, sampled_ns)) {
      span->phases[static_cast<size_t>(phase)].AddTo(&sum);
    }
  }
  return sum;
}

void MethodFigures::ForgetSpans(int64_t now_ns) {
  const auto is_old = [&](const auto& span) {
    return span->time.end_ns <= now_ns - kLongestWindowNs;
  };
  spans.erase(std::remove_if(spans.begin(), spans.end(), is_old), spans.end());
}

MethodSeries::MethodSeries(MethodKey key, std::shared_ptr<const MethodRecorder> recorder,
                           std::shared_ptr<const RequestRecorder> version,
                           std::function<int64_t()> in_flight_count)
    : key_(std::move(key)),
      recorder_(std::move(recorder)),
      version_(std::move(version)),
      in_flight_count_(std::move(in_flight_count)) {}

int64_t MethodSeries::in_flight_count() const {
  return in_flight_count_ == nullptr ? 0 : in_flight_count_();
}

std::optional<int64_t> MethodSeries::ended_ns() const {
  return version_ == nullptr ? ended_ns_ : version_->ended_ns();
}

bool MethodSeries::IsTold() const {
  if (key_.method == MethodName(Method::kPredict)) return true;
  if (key_.method == MethodName(Method::kGetModelMetadata)) return true;
  // A series without a version belongs to a method that was registered by its name.
  if (is_closed()) return sampled_.since_start.count() > 0;
  return version_ == nullptr || recorder_->MayHaveRequests();
}

MethodSeries::Increment MethodSeries::Sample(TimeSpan span) {
  sampled_.ForgetSpans(span.end_ns);
  if (is_closed()) return {};
  // Reads the end before the snapshot: if the version has ended, nothing is recorded after the
  // snapshot.
  const std::optional<int64_t> ended_at_ns = ended_ns();
  Increment increment;
  MethodSnapshot now;
  if (recorder_->MayHaveRequests()) now = recorder_->Snapshot();
  if (now.count() > sampled_.since_start.count()) {
    increment.latency = now.phase(Phase::kTotal) - sampled_.since_start.phase(Phase::kTotal);
    increment.failed_count = now.failed_count() - sampled_.since_start.failed_count();
    AddSpan(span, now);
    sampled_.since_start = std::move(now);
  }
  if (ended_at_ns) {
    ended_ns_ = ended_at_ns;
    recorder_.reset();
    version_.reset();
    in_flight_count_ = nullptr;
  }
  return increment;
}

MethodFigures MethodSeries::Figures() const {
  if (is_closed()) return sampled_;
  return {recorder_->Snapshot(), sampled_.spans};
}

void MethodSeries::AddSpan(TimeSpan span, const MethodSnapshot& now) {
  auto added = std::make_shared<MethodSpan>();
  added->time = span;
  for (size_t phase = 0; phase < kPhaseCount; ++phase) {
    added->phases[phase] = SparseLatency(now.phases[phase] - sampled_.since_start.phases[phase]);
  }
  sampled_.spans.push_back(std::move(added));
}

}  // namespace millpond::metrics
