#pragma once

#include <cstdint>
#include <vector>

#include "native/metrics/latency_histogram.h"

namespace millpond::metrics {

// A LatencySnapshot of few latencies, like the latencies of one second. A value.
//
// Cost: 8 bytes for each bucket that is not empty. A second's requests to one model fill some
// hundred buckets, at most one for each request. Never more than 14 KiB.
class SparseLatency {
 public:
  SparseLatency() = default;
  explicit SparseLatency(const LatencySnapshot& latency);

  int64_t count() const { return count_; }

  void AddTo(LatencySnapshot* sum) const;

 private:
  // The low bits of a word that hold the bucket's number: kLatencyBucketCount is below 2^11. The
  // count above has 53 bits, and 2^53 requests take longer than a second.
  static constexpr int kBucketBits = 11;
  static_assert(kLatencyBucketCount <= 1 << kBucketBits);

  int64_t count_ = 0;
  int64_t sum_ns_ = 0;
  int64_t max_ns_ = 0;
  std::vector<uint64_t> counted_buckets_;  // a word each: the count above the bucket's number
};

}  // namespace millpond::metrics
