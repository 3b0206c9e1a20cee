#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/base/status.h"

namespace millpond::load_generator {

// The requests to send and their times, decided before the run. A value, read from a file that
// loadtest/plan/plan.py writes.
struct Plan {
  // The time after the start at which each request is due; ascending.
  std::vector<int64_t> offsets_ns;
  // The index in `payloads` of each request.
  std::vector<int32_t> payload_of;
  // Serialized PredictRequests.
  std::vector<std::string> payloads;
  // The number of channels, each with its own connection. Requests take them in turn.
  int64_t channel_count = 1;
  // The deadline of a request, counted from the time at which it is issued.
  int64_t deadline_ns = 0;
  // The SCHED_FIFO priority; 0 leaves the scheduling as it is.
  int64_t realtime_priority = 0;
  // The limit of the bytes of kept replies. Each distinct reply is kept once.
  int64_t kept_reply_bytes_max = 0;
  // The number of unanswered requests at which a due request waits (closed loop). 0: a due request
  // never waits (open loop).
  int64_t in_flight_max = 0;
};

// Reads a plan. Returns DATA_LOSS if the file is cut short or has impossible values, and NOT_FOUND
// if it cannot be opened.
base::StatusOr<Plan> ReadPlan(const std::string& path);

}  // namespace millpond::load_generator
