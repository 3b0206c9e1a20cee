#include "native/metrics/request_recorder.h"

#include <cstddef>

namespace millpond::metrics {

void RequestRecorder::Record(base::Code code, int64_t latency_ns) {
  code_shards_.Mine().counts[static_cast<size_t>(code)].fetch_add(1, std::memory_order_relaxed);
  latency_.Record(latency_ns);  // Releases the line above to who sees the latency counted.
}

RequestSnapshot RequestRecorder::Snapshot() const {
  RequestSnapshot snapshot{latency_.Snapshot()};
  for (const CodeShard& shard : code_shards_) {
    for (size_t code = 0; code < shard.counts.size(); ++code) {
      snapshot.count_by_code[code] += shard.counts[code].load(std::memory_order_relaxed);
    }
  }
  return snapshot;
}

}  // namespace millpond::metrics
