#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/base/shard_lease.h"
#include "native/base/sharded.h"

namespace millpond::metrics {

// The number of buckets. They are log-linear, as in HdrHistogram: 64 buckets of 16 ns below 1,024
// ns, then 64 equal buckets for each power of two up to 2^37 ns (137 s).
inline constexpr int kLatencyBucketCount = 1792;

// The contents of a histogram at one moment. A value, which may be copied.
//
// Error: ValueAtQuantile is within 0.8 % of the true value from 1 µs to 136 s, and within 8 ns of
// it below 1 µs. A value out of range is counted in the first or the last bucket.
// Cost: 14 KiB; almost nothing while it is empty.
class LatencySnapshot {
 public:
  int64_t count() const { return count_; }
  // Exact below 292 years.
  int64_t sum_ns() const { return sum_ns_; }
  // Exact, except after a subtraction (see operator-).
  int64_t max_ns() const { return max_ns_; }

  // Returns the nearest-rank quantile: the smallest latency that at least `quantile` of all
  // recorded latencies do not exceed, read as the middle of its bucket. The largest latency, and
  // any latency beyond the last bucket, is read as max_ns(). Returns 0 if nothing was recorded.
  // `quantile` is within [0, 1].
  int64_t ValueAtQuantile(double quantile) const;

  // Returns for each of the ascending edges the number of latencies at or below it. A latency
  // counts as the middle of its bucket, so that the result agrees with ValueAtQuantile.
  std::vector<int64_t> CumulativeCounts(const std::vector<int64_t>& edges_ns) const;

  // Adds the latencies of another histogram.
  LatencySnapshot& operator+=(const LatencySnapshot& other);

  // Returns the latencies recorded between two snapshots of one histogram. If the maximum rose in
  // between, max_ns() is exact. If not, it is within the error above.
  friend LatencySnapshot operator-(LatencySnapshot later, const LatencySnapshot& earlier);

 private:
  friend class LatencyHistogram;
  friend class SparseLatency;

  // Returns the latency that stands for a bucket in quantiles: the bucket's middle, but never above
  // max_ns().
  int64_t ValueOfBucketNs(int bucket) const;
  void MakeBuckets() { bucket_counts_.resize(kLatencyBucketCount); }

  int64_t count_ = 0;
  int64_t sum_ns_ = 0;
  int64_t max_ns_ = 0;
  std::vector<int64_t> bucket_counts_;  // empty while count_ is 0
};

// The usual figures of a distribution, in ns; all 0 if nothing was recorded.
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

// The distribution of the latencies of requests.
//
// Thread: any thread may call Record and Snapshot at any time. A thread that has a shard to itself
// (LeasedShard) writes to it without read-modify-write. The other threads share one shard. In it
// Record is wait-free (two atomic additions), except for a new maximum, which is lock-free.
//
// Counts: exact. A snapshot has every Record that returned before the snapshot began, and may have
// some that run at the same time. A latency that it counts is also in its sum and under its
// maximum.
//
// Cost: Record 3 ns. In the shared shard Record takes 10 ns, and about 40 ns, at worst 110, if
// threads meet there (native/bench/latency_histogram_bench.cc). Snapshot takes a few µs.
//
// Memory: 14.4 KiB a shard, touched at construction. A hot histogram has a shard for each core, at
// most 32, and the shared shard: 43 KiB on two cores.
class LatencyHistogram {
 public:
  enum class Use {
    kHot,   // recorded for each request
    kRare,  // has only the shared shard
  };

  explicit LatencyHistogram(Use use = Use::kHot)
      : own_shard_count_(use == Use::kHot ? base::ShardCountForRequestThreads() : 0),
        shards_(std::make_unique<Shard[]>(own_shard_count_ + 1)) {}

  // Records a latency. A negative latency counts as 0.
  void Record(int64_t latency_ns);

  LatencySnapshot Snapshot() const;

 private:
  struct alignas(base::kCacheLineBytes) Shard {
    std::atomic<int64_t> sum_ns{0};
    std::atomic<int64_t> max_ns{0};
    std::array<std::atomic<int64_t>, kLatencyBucketCount> bucket_counts{};
  };

  const int own_shard_count_;
  const std::unique_ptr<Shard[]> shards_;  // the last shard is shared
};

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

// The time between two samples of the recorders, about a second. It is shorter if a caller cut it,
// and longer if the sample came late.
struct TimeSpan {
  int64_t begin_ns;
  int64_t end_ns;

  // Returns true if most of the span lies within the longer time. A longer time that begins and
  // ends at the bounds of spans therefore consists of exactly the spans between them.
  bool IsMostlyWithin(int64_t from_ns, int64_t to_ns) const {
    const int64_t middle_ns = begin_ns + (end_ns - begin_ns) / 2;
    return from_ns <= middle_ns && middle_ns < to_ns;
  }
};

// The latencies of the last spans of time. The latencies of a span may be of several kinds, which
// are numbered from 0. A value: a copy shares the latencies.
class LatencySpans {
 public:
  // Adds a span. `by_kind` has the latencies of each kind.
  void Add(TimeSpan time, std::vector<SparseLatency> by_kind);
  LatencySpans& operator+=(const LatencySpans& other);
  // Forgets the spans that ended at `end_ns` or before.
  void ForgetUntil(int64_t end_ns);
  bool is_empty() const { return spans_.empty(); }

  // Returns the latencies of the spans that lie mostly in between.
  LatencySnapshot Between(int64_t from_ns, int64_t to_ns, size_t kind = 0) const;
  // Returns the latencies of the `window_ns` before `end_ns`. Includes the spans that end then,
  // however long they were.
  LatencySnapshot Last(int64_t window_ns, int64_t end_ns, size_t kind = 0) const;

 private:
  struct Span {
    TimeSpan time;
    std::shared_ptr<const std::vector<SparseLatency>> by_kind;
  };

  std::vector<Span> spans_;
};

}  // namespace millpond::metrics
