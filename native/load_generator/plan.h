#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/base/status.h"

namespace millpond::load_generator {

// What to send and when, decided before the run: a value, made from a file that loadtest/plan.py
// writes.
struct Plan {
  // When each request is due after the start; ascending.
  std::vector<int64_t> offsets_ns;
  // For each request its place in `payloads`.
  std::vector<int32_t> payload_of;
  // Serialized PredictRequests.
  std::vector<std::string> payloads;
  // Each channel is a connection of its own; requests take them in turn.
  int64_t channel_count = 1;
  // Of one request, from when it is issued.
  int64_t deadline_ns = 0;
  // SCHED_FIFO priority; 0 leaves the scheduling as it is.
  int64_t realtime_priority = 0;
  // Replies that differ are kept up to this many bytes in all.
  int64_t kept_reply_bytes_max = 0;
  // A request that is due waits while so many are unanswered (closed loop); 0: never (open loop).
  int64_t in_flight_max = 0;
};

// DATA_LOSS for a file that is cut short or says what cannot be, NOT_FOUND for one that is not
// there.
base::StatusOr<Plan> ReadPlan(const std::string& path);

}  // namespace millpond::load_generator
