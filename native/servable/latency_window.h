#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "native/metrics/latency_histogram.h"
#include "native/servable/serving_map.h"

namespace millpond::servable {

// How live requests fare: the latencies that all published versions recorded of every method that
// runs the model (RequestRecorder::ModelRuns), of their whole life and of the last second.
//
// Thread: any; calls take turns on a mutex that no request takes. Cost: some µs for each published
// version and call; it keeps about a dozen snapshots of 14 KiB for each, as long as it is asked.
class LatencyWindow {
 public:
  static constexpr int64_t kWindowNs = 1'000'000'000;

  // Borrows `map`.
  explicit LatencyWindow(ServingMap* map) : map_(map) {}

  // The nearest-rank quantile over all that the versions which are published now have answered, in
  // ns; 0 where there was nothing.
  int64_t ValueSinceStart(double quantile);

  // Of the requests between this call and the oldest call within the last kWindowNs, so it wants
  // to be called a few times a second. 0 where there were none, and at the first call.
  int64_t ValueOfLastSecond(double quantile, int64_t now_ns);

 private:
  struct Taken {
    int64_t at_ns;
    metrics::LatencySnapshot latency;
  };
  using History = std::deque<Taken>;

  ServingMap* const map_;
  std::mutex mutex_;
  // By version; the pointer keeps a new one from being taken for an old one at its address.
  std::map<std::shared_ptr<const ServableEntry>, History> histories_;
};

}  // namespace millpond::servable
