#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "native/metrics/latency_histogram.h"
#include "native/servable/serving_map.h"

namespace millpond::servable {

// Reports the latencies of live requests: over the whole life of the published versions, and over
// the last second. It covers all published versions and each method that runs the model
// (RequestRecorder::ModelRuns).
//
// Thread: any; calls take turns on a mutex that no request takes. Cost: some µs per call for each
// published version. Memory: about a dozen snapshots of 14 KiB for each published version, once
// ValueOfLastSecond is called.
class LatencyWindow {
 public:
  static constexpr int64_t kWindowNs = 1'000'000'000;

  // Borrows `map`.
  explicit LatencyWindow(ServingMap* map) : map_(map) {}

  // Returns the nearest-rank quantile, in ns, of all requests that the versions published now have
  // answered. Returns 0 if they have not answered any.
  int64_t ValueSinceStart(double quantile);

  // Returns the nearest-rank quantile, in ns, of the requests since the oldest call of the last
  // kWindowNs. Call it a few times a second. Returns 0 if there were no such requests, and at the
  // first call.
  int64_t ValueOfLastSecond(double quantile, int64_t now_ns);

 private:
  struct Taken {
    int64_t at_ns;
    metrics::LatencySnapshot latency;
  };
  using History = std::deque<Taken>;

  ServingMap* const map_;
  std::mutex mutex_;
  // Keyed by version. The shared pointer keeps an entry alive, so that a new entry at the same
  // address cannot be taken for the old one.
  std::map<std::shared_ptr<const ServableEntry>, History> histories_;
};

}  // namespace millpond::servable
