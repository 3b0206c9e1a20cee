// What recording one request costs, and what reading a histogram costs.
#include <cstdint>

#include "native/base/status.h"
#include "native/bench/measure.h"
#include "native/metrics/latency_histogram.h"
#include "native/metrics/request_recorder.h"

namespace millpond::bench {
namespace {

constexpr int kCallCount = 5'000'000;

// 0.2 to 4.2 ms, spread over some 280 buckets as a real distribution is.
int64_t LatencyOf(int call) { return 200'000 + (call * 2'654'435'761u >> 10); }

void MeasureRecord(int thread_count) {
  metrics::LatencyHistogram histogram;
  Measure("latency_histogram_record", thread_count, kCallCount,
          [&](int, int call) { histogram.Record(LatencyOf(call)); });
  metrics::RequestRecorder recorder;
  Measure("request_recorder_record", thread_count, kCallCount,
          [&](int, int call) { recorder.Record(base::Code::kOk, LatencyOf(call)); });
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
  millpond::bench::MeasureRead();
}
