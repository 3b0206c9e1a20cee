#include "native/metrics/latency_histogram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "native/base/bit_width.h"

namespace millpond::metrics {
namespace {

// Latencies are truncated to units of 16 ns. Each power of two has 64 buckets. So a bucket is at
// most 1/64 as wide as the latencies in it, and its middle is at most 1/128 (0.8 %) off.
constexpr int kUnitBits = 4;
constexpr int kBucketsPerDoublingBits = 6;
constexpr int kBucketsPerDoubling = 1 << kBucketsPerDoublingBits;
constexpr int64_t kLargestBucketedNs = (int64_t{1} << 37) - 1;
constexpr int kLastBucket = kLatencyBucketCount - 1;

// Returns the bucket of a latency. Buckets 0 to 127 are one unit wide, the next 64 two units, the
// next 64 four, and so on.
int BucketOf(int64_t latency_ns) {
  const int64_t units = std::min(latency_ns, kLargestBucketedNs) >> kUnitBits;
  const int highest_bit = base::BitWidth(units | kBucketsPerDoubling) - 1;
  const int doublings = highest_bit - kBucketsPerDoublingBits;
  return static_cast<int>(doublings * kBucketsPerDoubling + (units >> doublings));
}

int64_t MiddleOfBucketNs(int bucket) {
  const int doublings = std::max(0, bucket / kBucketsPerDoubling - 1);
  const auto units = static_cast<int64_t>(bucket - doublings * kBucketsPerDoubling) << doublings;
  const int64_t half_width_ns = (int64_t{1} << (doublings + kUnitBits)) / 2;
  return (units << kUnitBits) + half_width_ns;
}

// Returns the rank of a quantile, from 1 to `count`. In floating point 0.07 * 100 is
// 7.000000000000001, and its rank must still be 7.
int64_t NearestRank(double quantile, int64_t count) {
  constexpr double kRoundingErrorRatio = 1e-12;
  const double rank = std::ceil(quantile * static_cast<double>(count) * (1 - kRoundingErrorRatio));
  return std::clamp(static_cast<int64_t>(rank), int64_t{1}, count);
}

// Adds without read-modify-write. Only for a cell that no other thread writes to.
void AddAlone(int64_t value, std::memory_order order, std::atomic<int64_t>* cell) {
  cell->store(cell->load(std::memory_order_relaxed) + value, order);
}

}  // namespace

int64_t LatencySnapshot::ValueAtQuantile(double quantile) const {
  if (count_ == 0) return 0;
  int64_t above_count = count_ - NearestRank(quantile, count_);
  if (above_count == 0) return max_ns_;
  // Searched from the top, because most callers read high quantiles.
  int bucket = kLastBucket;
  while (above_count >= bucket_counts_[bucket]) above_count -= bucket_counts_[bucket--];
  return ValueOfBucketNs(bucket);
}

int64_t LatencySnapshot::ValueOfBucketNs(int bucket) const {
  return bucket == kLastBucket ? max_ns_ : std::min(MiddleOfBucketNs(bucket), max_ns_);
}

std::vector<int64_t> LatencySnapshot::CumulativeCounts(const std::vector<int64_t>& edges_ns) const {
  std::vector<int64_t> counts;
  counts.reserve(edges_ns.size());
  int64_t count = 0;
  int bucket = count_ == 0 ? kLatencyBucketCount : 0;
  for (const int64_t edge_ns : edges_ns) {
    while (bucket < kLatencyBucketCount && ValueOfBucketNs(bucket) <= edge_ns) {
      count += bucket_counts_[bucket++];
    }
    counts.push_back(count);
  }
  return counts;
}

LatencySnapshot& LatencySnapshot::operator+=(const LatencySnapshot& other) {
  if (other.count_ == 0) return *this;
  MakeBuckets();
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
  for (int bucket = 0; bucket < kLatencyBucketCount; ++bucket) {
    bucket_counts_[bucket] += other.bucket_counts_[bucket];
  }
  return *this;
}

LatencySnapshot operator-(LatencySnapshot later, const LatencySnapshot& earlier) {
  if (earlier.count_ == 0) return later;
  later.count_ -= earlier.count_;
  later.sum_ns_ -= earlier.sum_ns_;
  int highest_bucket = 0;
  for (int bucket = 0; bucket < kLatencyBucketCount; ++bucket) {
    later.bucket_counts_[bucket] -= earlier.bucket_counts_[bucket];
    if (later.bucket_counts_[bucket] > 0) highest_bucket = bucket;
  }
  const bool max_rose = later.max_ns_ > earlier.max_ns_;
  if (later.count_ == 0) {
    later = {};
  } else if (!max_rose && highest_bucket != kLastBucket) {
    later.max_ns_ = std::min(MiddleOfBucketNs(highest_bucket), later.max_ns_);
  }
  return later;
}

LatencyFigures FiguresOf(const LatencySnapshot& snapshot) {
  return {snapshot.count(),
          snapshot.sum_ns(),
          snapshot.ValueAtQuantile(0.5),
          snapshot.ValueAtQuantile(0.9),
          snapshot.ValueAtQuantile(0.99),
          snapshot.ValueAtQuantile(0.999),
          snapshot.max_ns()};
}

void LatencyHistogram::Record(int64_t latency_ns) {
  latency_ns = std::max<int64_t>(latency_ns, 0);
  const int mine = own_shard_count_ > 0 ? base::LeasedShard() : base::kNoShard;
  Shard& shard = shards_[mine >= 0 ? mine : own_shard_count_];
  std::atomic<int64_t>& bucket_count = shard.bucket_counts[BucketOf(latency_ns)];
  // Written last, with release: a snapshot that counts this latency has it in the sum and under the
  // maximum.
  if (mine >= 0) {
    AddAlone(latency_ns, std::memory_order_relaxed, &shard.sum_ns);
    base::RaiseTo(shard.max_ns, latency_ns);
    AddAlone(1, std::memory_order_release, &bucket_count);
  } else {
    shard.sum_ns.fetch_add(latency_ns, std::memory_order_relaxed);
    base::RaiseTo(shard.max_ns, latency_ns);
    bucket_count.fetch_add(1, std::memory_order_release);
  }
}

LatencySnapshot LatencyHistogram::Snapshot() const {
  LatencySnapshot snapshot;
  snapshot.MakeBuckets();
  for (int i = 0; i <= own_shard_count_; ++i) {
    const Shard& shard = shards_[i];
    for (int bucket = 0; bucket < kLatencyBucketCount; ++bucket) {
      const int64_t count = shard.bucket_counts[bucket].load(std::memory_order_acquire);
      snapshot.bucket_counts_[bucket] += count;
      snapshot.count_ += count;
    }
    snapshot.sum_ns_ += shard.sum_ns.load(std::memory_order_relaxed);
    snapshot.max_ns_ = std::max(snapshot.max_ns_, shard.max_ns.load(std::memory_order_relaxed));
  }
  if (snapshot.count_ == 0) return {};
  return snapshot;
}

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

void LatencySpans::Add(TimeSpan time, std::vector<SparseLatency> by_kind) {
  spans_.push_back({time, std::make_shared<const std::vector<SparseLatency>>(std::move(by_kind))});
}

LatencySpans& LatencySpans::operator+=(const LatencySpans& other) {
  spans_.insert(spans_.end(), other.spans_.begin(), other.spans_.end());
  return *this;
}

void LatencySpans::ForgetUntil(int64_t end_ns) {
  const auto is_old = [&](const Span& span) { return span.time.end_ns <= end_ns; };
  spans_.erase(std::remove_if(spans_.begin(), spans_.end(), is_old), spans_.end());
}

LatencySnapshot LatencySpans::Between(int64_t from_ns, int64_t to_ns, size_t kind) const {
  LatencySnapshot sum;
  for (const Span& span : spans_) {
    if (span.time.IsMostlyWithin(from_ns, to_ns)) (*span.by_kind)[kind].AddTo(&sum);
  }
  return sum;
}

LatencySnapshot LatencySpans::Last(int64_t window_ns, int64_t end_ns, size_t kind) const {
  LatencySnapshot sum;
  for (const Span& span : spans_) {
    const bool ends_then = span.time.end_ns == end_ns;
    if (ends_then || span.time.IsMostlyWithin(end_ns - window_ns, end_ns)) {
      (*span.by_kind)[kind].AddTo(&sum);
    }
  }
  return sum;
}

}  // namespace millpond::metrics
