// Measures the cost of recording one request, and of reading a histogram.
#include <cstdint>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/bench/measure.h"
#include "native/metrics/latency_histogram.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/request_statistics.h"

namespace millpond::bench {
namespace {

constexpr int kCallCount = 5'000'000;

// Returns 0.2 to 4.2 ms, spread over some 280 buckets like a real distribution.
int64_t LatencyOf(int call) { return 200'000 + (call * 2'654'435'761u >> 10); }

metrics::PhaseTimes TimesOf(int call) {
  const int64_t total_ns = LatencyOf(call);
  return {{total_ns >> 10, total_ns >> 3, metrics::PhaseTimes::kNone, total_ns - (total_ns >> 2),
           total_ns >> 3, total_ns}};
}

void MeasureRecord(int thread_count) {
  metrics::LatencyHistogram histogram;
  Measure("latency_histogram_record", thread_count, kCallCount,
          [&](int, int call) { histogram.Record(LatencyOf(call)); });
  metrics::MethodRecorder recorder(metrics::MethodRecorder::Use::kHot);
  Measure("method_recorder_record_all_phases", thread_count, kCallCount,
          [&](int, int call) { recorder.Record(base::Code::kOk, TimesOf(call)); });
  metrics::MethodRecorder failures(metrics::MethodRecorder::Use::kHot);
  Measure("method_recorder_record_failure", thread_count, kCallCount,
          [&](int, int call) { failures.Record(base::Code::kInvalidArgument, TimesOf(call)); });
}

// Measures the cost of a request's phases apart from recording them, which is the cost of the clock
// readings. A Predict takes three readings for its phases, and one for its end. Without phases it
// would take only the one for its end.
void MeasureWatch() {
  Measure("monotonic_ns", 1, kCallCount, [](int, int) {
    const int64_t now_ns = base::MonotonicNs();
    Keep(&now_ns);
  });
  Measure("phase_watch_of_a_predict", 1, kCallCount, [](int, int) {
    metrics::PhaseWatch watch(0);
    watch.Enter(metrics::Phase::kDecode, base::MonotonicNs());
    watch.Enter(metrics::Phase::kRun, base::MonotonicNs());
    watch.Enter(metrics::Phase::kEncode, base::MonotonicNs());
    Keep(&watch.End(base::MonotonicNs()));
  });
}

void MeasureFirstFailure() {
  constexpr int kFirstCount = 200;
  std::vector<std::unique_ptr<metrics::MethodRecorder>> fresh;
  Measure("method_recorder_first_failure", 1, kFirstCount, [&](int, int) {
    fresh.push_back(std::make_unique<metrics::MethodRecorder>(metrics::MethodRecorder::Use::kRare));
    fresh.back()->Record(base::Code::kNotFound, metrics::PhaseTimes::OfTotal(1'000));
  });
}

void MeasureSample() {
  metrics::RequestStatistics statistics(0);
  const auto recorder = std::make_shared<metrics::RequestRecorder>();
  statistics.AddVersion("m", 1, recorder, nullptr, 0);
  auto& predict = recorder->Of(metrics::Method::kPredict);
  int64_t now_ns = 0;
  Measure("request_statistics_sample_1000", 1, 100, [&](int, int) {
    for (int call = 0; call < 1'000; ++call) predict.Record(base::Code::kOk, TimesOf(call));
    statistics.Sample(now_ns += 1'000'000'000);
  });
}

void MeasureRead() {
  metrics::LatencyHistogram histogram;
  for (int call = 0; call < 100'000; ++call) histogram.Record(LatencyOf(call));
  const metrics::LatencySnapshot snapshot = histogram.Snapshot();
  Measure("latency_histogram_snapshot", 1, 10'000, [&](int, int) {
    const metrics::LatencySnapshot copy = histogram.Snapshot();
    Keep(&copy);
  });
  Measure("latency_snapshot_p999", 1, 100'000, [&](int, int) {
    const int64_t p999_ns = snapshot.ValueAtQuantile(0.999);
    Keep(&p999_ns);
  });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  for (const int thread_count : {1, 2, 4}) millpond::bench::MeasureRecord(thread_count);
  millpond::bench::MeasureWatch();
  millpond::bench::MeasureFirstFailure();
  millpond::bench::MeasureRead();
  millpond::bench::MeasureSample();
}
