#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/metrics/shard_lease.h"
#include "native/metrics/sharded.h"

namespace millpond::metrics {

// The buckets are log-linear, as in HdrHistogram: 64 of 16 ns each below 1,024 ns, then 64 equal
// ones for each power of two up to 2^37 ns (137 s).
inline constexpr int kLatencyBucketCount = 1792;

// What a histogram had recorded at one moment: a value, free to copy and to compare.
//
// Error: ValueAtQuantile is within 0.8 % of the true value from 1 µs to 136 s and within 8 ns of it
// below. Every recorded value is counted, the clamped ones in the first or the last bucket.
// Cost: 14 KiB; next to nothing while it is empty.
class LatencySnapshot {
 public:
  int64_t count() const { return count_; }
  // Exact while it is below 292 years.
  int64_t sum_ns() const { return sum_ns_; }
  // Exact; after a subtraction see operator-.
  int64_t max_ns() const { return max_ns_; }

  // The nearest-rank quantile: the smallest latency that at least `quantile` of all recorded ones
  // do not exceed, read as the middle of its bucket. The rank of the largest, and values beyond
  // the last bucket, read as max_ns(). 0 where nothing was recorded. `quantile` is within [0, 1].
  int64_t ValueAtQuantile(double quantile) const;

  // For each of the ascending edges, how many latencies were at most that: those whose bucket's
  // middle is, so that it agrees with ValueAtQuantile.
  std::vector<int64_t> CumulativeCounts(const std::vector<int64_t>& edges_ns) const;

  // Takes in what another histogram had recorded.
  LatencySnapshot& operator+=(const LatencySnapshot& other);

  // What was recorded between two snapshots of one histogram. max_ns() is then exact where the
  // maximum rose in between, else within the error above.
  friend LatencySnapshot operator-(LatencySnapshot later, const LatencySnapshot& earlier);

 private:
  friend class LatencyHistogram;
  friend class SparseLatency;

  // As the quantiles read it.
  int64_t ValueOfBucketNs(int bucket) const;
  void MakeBuckets() { bucket_counts_.resize(kLatencyBucketCount); }

  int64_t count_ = 0;
  int64_t sum_ns_ = 0;
  int64_t max_ns_ = 0;
  std::vector<int64_t> bucket_counts_;  // none while count_ is 0
};

// What people ask of a distribution; 0 where nothing was recorded.
struct LatencyFigures {
  int64_t count = 0;
  int64_t sum_ns = 0;
  int64_t p50_ns = 0;
  int64_t p90_ns = 0;
  int64_t p99_ns = 0;
  int64_t p999_ns = 0;
  int64_t max_ns = 0;
};

LatencyFigures FiguresOf(const LatencySnapshot& snapshot);

// How long requests took, as a distribution.
//
// Thread: Record and Snapshot from any, at once. A thread that has a shard to itself (LeasedShard)
// writes to it without read-modify-write. The others share one: there Record is wait-free (two
// atomic additions) but for a new maximum, which is lock-free. Counts: exact. A snapshot holds
// every Record that returned before it and may hold some that run beside it; whatever it counts is
// in its sum and under its maximum too. Cost: Record 3 ns; 10 ns in the shared shard, and about 40,
// at worst 110, where threads meet in it (native/bench/latency_histogram_bench.cc). Snapshot a few
// µs. Memory 14.4 KiB a shard: a hot one has one for each core, at most 32, and the shared one: 43
// KiB on two cores. Touched when it is made.
class LatencyHistogram {
 public:
  enum class Use {
    kHot,   // of each request
    kRare,  // has the shared shard only
  };

  explicit LatencyHistogram(Use use = Use::kHot)
      : own_shard_count_(use == Use::kHot ? ShardCountForRequestThreads() : 0),
        shards_(std::make_unique<Shard[]>(own_shard_count_ + 1)) {}

  // Negative latencies count as 0.
  void Record(int64_t latency_ns);

  LatencySnapshot Snapshot() const;

 private:
  struct alignas(kCacheLineBytes) Shard {
    std::atomic<int64_t> sum_ns{0};
    std::atomic<int64_t> max_ns{0};
    std::array<std::atomic<int64_t>, kLatencyBucketCount> bucket_counts{};
  };

  const int own_shard_count_;
  const std::unique_ptr<Shard[]> shards_;  // the last one is shared
};

}  // namespace millpond::metrics
