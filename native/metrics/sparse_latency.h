#pragma once

#include <cstdint>
#include <vector>

#include "native/metrics/latency_histogram.h"

namespace millpond::metrics {

// A LatencySnapshot of few latencies: what one second recorded. A value.
//
// Cost: 8 bytes for each of its buckets that is not empty: some hundred for a second's requests to
// one model, at most as many as there were requests, and never more than 14 KiB.
class SparseLatency {
 public:
  SparseLatency() = default;
  explicit SparseLatency(const LatencySnapshot& latency);

  int64_t count() const { return count_; }

  void AddTo(LatencySnapshot* sum) const;

 private:
  // In one word: kLatencyBucketCount is below 2^11, and 2^53 requests take longer than a second.
  static constexpr int kBucketBits = 11;
  static_assert(kLatencyBucketCount <= 1 << kBucketBits);

  int64_t count_ = 0;
  int64_t sum_ns_ = 0;
  int64_t max_ns_ = 0;
  std::vector<uint64_t> counted_buckets_;  // the count above the bucket's number
};

}  // namespace millpond::metrics
