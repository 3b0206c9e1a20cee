#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "native/metrics/request_recorder.h"
#include "native/metrics/sparse_latency.h"
#include "native/metrics/time_span.h"

namespace millpond::metrics {

// The subject of a series of figures.
struct MethodKey {
  std::string model;    // "": no model
  int64_t version = 0;  // 0: no version, or all; -1: requests that reached no version
  std::string method;

  bool operator<(const MethodKey& other) const {
    return std::tie(model, version, method) < std::tie(other.model, other.version, other.method);
  }
};

// The latencies of one method's requests that ended in one span, by phase.
struct MethodSpan {
  TimeSpan time;
  std::array<SparseLatency, kPhaseCount> phases;
};

using MethodSpans = std::deque<std::shared_ptr<const MethodSpan>>;

// The figures of the requests to one method, since the first and in the last spans. A value. A copy
// copies some snapshots of 14 KiB and shares the spans.
struct MethodFigures {
  // The longest window for which spans are kept.
  static constexpr int64_t kLongestWindowNs = 60'000'000'000;

  MethodFigures& operator+=(const MethodFigures& other);
  // Returns the latencies of the spans that end within `window_ns` before the last sample,
  // `sampled_ns`. Includes the last span however long it was.
  LatencySnapshot Within(Phase phase, int64_t window_ns, int64_t sampled_ns) const;
  void ForgetSpans(int64_t now_ns);

  MethodSnapshot since_start;
  MethodSpans spans;  // only spans with requests
};

// The figures of one method over time.
//
// Not thread-safe, except for the recorder, which request threads write to. Memory: up to 86 KiB
// for the last snapshot, and a SparseLatency for each phase of each of the last 60 s. The latter
// take some 300 KiB if thousands of requests a second fill 100 buckets a phase. They take 4.3 MiB
// if each second fills all buckets.
class MethodSeries {
 public:
  // Reads `recorder`, until `version` has ended. A series without `version` never ends.
  MethodSeries(MethodKey key, std::shared_ptr<const MethodRecorder> recorder,
               std::shared_ptr<const RequestRecorder> version = nullptr,
               std::function<int64_t()> in_flight_count = nullptr);

  const MethodKey& key() const { return key_; }
  // The instant at which the version had ended.
  std::optional<int64_t> ended_ns() const;
  // True if Sample has seen the end of the version: nothing is recorded any more.
  bool is_closed() const { return recorder_ == nullptr; }
  int64_t in_flight_count() const;
  // Returns true if the series is worth reporting. Predict and GetModelMetadata are reported from
  // the start, for dashboards. Most versions never receive a request to most of the other methods,
  // and their series would stay empty.
  bool IsTold() const;

  // The requests recorded since the last Sample.
  struct Increment {
    LatencySnapshot latency;
    int64_t failed_count = 0;
  };
  Increment Sample(TimeSpan span);

  // Returns the current figures, with the spans up to the last Sample.
  MethodFigures Figures() const;

 private:
  void AddSpan(TimeSpan span, const MethodSnapshot& now);

  const MethodKey key_;
  std::shared_ptr<const MethodRecorder> recorder_;  // null after the end, which frees its memory
  std::shared_ptr<const RequestRecorder> version_;  // null if it never ends, or has ended
  std::function<int64_t()> in_flight_count_;
  std::optional<int64_t> ended_ns_;
  MethodFigures sampled_;
};

}  // namespace millpond::metrics
