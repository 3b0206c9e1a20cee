#include "native/metrics/sparse_latency.h"

#include <algorithm>

namespace millpond::metrics {

SparseLatency::SparseLatency(const LatencySnapshot& latency)
    : count_(latency.count_), sum_ns_(latency.sum_ns_), max_ns_(latency.max_ns_) {
  if (count_ == 0) return;
  const std::vector<int64_t>& counts = latency.bucket_counts_;
  counted_buckets_.reserve(kLatencyBucketCount - std::count(counts.begin(), counts.end(), 0));
  for (uint64_t bucket = 0; bucket < counts.size(); ++bucket) {
    const auto count = static_cast<uint64_t>(counts[bucket]);
    if (count > 0) counted_buckets_.push_back(count << kBucketBits | bucket);
  }
}

void SparseLatency::AddTo(LatencySnapshot* sum) const {
  if (count_ == 0) return;
  constexpr uint64_t kBucketMask = (1 << kBucketBits) - 1;
  sum->MakeBuckets();
  sum->count_ += count_;
  sum->sum_ns_ += sum_ns_;
  sum->max_ns_ = std::max(sum->max_ns_, max_ns_);
  for (const uint64_t counted : counted_buckets_) {
    sum->bucket_counts_[counted & kBucketMask] += static_cast<int64_t>(counted >> kBucketBits);
  }
}

}  // namespace millpond::metrics
