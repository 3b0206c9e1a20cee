#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "native/servable/record_queue.h"

namespace millpond::servable {

// The inputs or outputs that may be logged, by name.
struct LoggedNames {
  bool Contains(std::string_view name) const { return are_all || names.count(name) > 0; }

  bool are_all = false;
  std::set<std::string, std::less<>> names;
};

// The share of a model's requests that its log takes, and the parts of them. A value.
struct RequestLogSettings {
  double sampling_rate = 0;  // share of the requests, 0 to 1
  LoggedNames inputs;
  LoggedNames outputs;
};

// The fixed part of a record in the queue. The PredictionLog follows it.
struct LoggedRequest {
  int64_t received_ns = 0;  // as of base::MonotonicNs
  int64_t latency_ns = 0;
  int64_t version = 0;
  char trace_id[32] = {};  // hexadecimal digits; zero bytes if the client named no trace
  uint64_t log_id = 0;
};
static_assert(sizeof(LoggedRequest) == 64);

struct RequestLogStatistics {
  int64_t sampled_count = 0;
  // The sampled requests that found no room in the queue.
  int64_t dropped_count = 0;
};

// Chooses the requests of one model that are logged, and queues their records for the thread that
// writes them.
//
// Thread: Sample, Put and Statistics: any number at once; they never wait. Set: one at a time.
// Owner: shared by the entries of the model's versions; outlives each of them.
// Cost: Sample reads one pointer if nothing is logged, and otherwise draws a random number: 2 ns.
class RequestLog {
 public:
  // Makes a log that takes nothing yet. `id` tells its records from those of other logs.
  RequestLog(std::shared_ptr<RecordQueue> queue, uint64_t id);

  // Replaces the settings for requests that end from now on. Earlier settings are kept as long as
  // the log, because a request may still read them; only an operator's change makes new ones.
  void Set(RequestLogSettings settings);

  // Returns the settings if a request is to be logged, and null for other requests.
  const RequestLogSettings* Sample() const {
    const RequestLogSettings* const settings = settings_.load(std::memory_order_acquire);
    return settings != nullptr && IsDrawn(settings->sampling_rate) ? settings : nullptr;
  }

  // Queues a record whose PredictionLog has `bytes`, which `write(char*)` writes. Counts it as
  // sampled, and as dropped if there is no room.
  template <typename Write>
  void Put(LoggedRequest request, size_t bytes, Write write) {
    sampled_count_.fetch_add(1, std::memory_order_relaxed);
    char* const record = queue_->Begin(sizeof request + bytes);
    if (record == nullptr) {
      dropped_count_.fetch_add(1, std::memory_order_release);
      return;
    }
    request.log_id = id_;
    std::memcpy(record, &request, sizeof request);
    write(record + sizeof request);
    queue_->Commit(record, sizeof request + bytes);
  }
  RequestLogStatistics Statistics() const;

 private:
  // Returns true with the probability `rate`.
  static bool IsDrawn(double rate);

  const std::shared_ptr<RecordQueue> queue_;
  const uint64_t id_;
  std::vector<std::unique_ptr<const RequestLogSettings>> all_settings_;  // for Set only
  std::atomic<const RequestLogSettings*> settings_{nullptr};             // null: nothing is logged
  std::atomic<int64_t> sampled_count_{0};
  std::atomic<int64_t> dropped_count_{0};
};

}  // namespace millpond::servable
