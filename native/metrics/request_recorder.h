#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "native/base/status.h"
#include "native/metrics/latency_histogram.h"
#include "native/metrics/sharded.h"

namespace millpond::metrics {

// What a recorder had recorded at one moment. While requests run, the counts by code may be ahead
// of latency.count() by those that are being recorded, never behind.
struct RequestSnapshot {
  LatencySnapshot latency;
  // By the number of the base::Code.
  std::array<int64_t, base::kCodeCount> count_by_code{};
};

// The requests to one method of one version that have ended, however they ended.
//
// Thread: any, at once. Wait-free as LatencyHistogram is.
// Owner: the version, so that its figures go with it.
// Cost: Record 8 ns. Memory 14.6 KiB a shard, one shard a core, at most 32.
class RequestRecorder {
 public:
  RequestRecorder() : code_shards_(ShardCountForRequestThreads()) {}

  // Once for each request, failures and expired deadlines included.
  void Record(base::Code code, int64_t latency_ns);

  RequestSnapshot Snapshot() const;

 private:
  struct alignas(kCacheLineBytes) CodeShard {
    std::array<std::atomic<int64_t>, base::kCodeCount> counts{};
  };

  Sharded<CodeShard> code_shards_;
  LatencyHistogram latency_;
};

}  // namespace millpond::metrics
