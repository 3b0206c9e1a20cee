#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/load_generator/plan.h"
#include "native/load_generator/reply_table.h"

namespace millpond::load_generator {

// The outcome of each request of a plan. All instants are of CLOCK_MONOTONIC, which all processes
// of the machine share.
struct Outcome {
  explicit Outcome(const Plan& plan);

  int64_t started_ns = 0;
  // The number of issued requests: all requests of the plan, or the first ones if the run was
  // stopped.
  int64_t issued_count = 0;
  // The time at which the request had been handed to the connection. The vectors are allocated and
  // touched before the run.
  std::vector<int64_t> issued_ns;
  std::vector<int64_t> completed_ns;
  std::vector<int32_t> codes;
  std::vector<int32_t> reply_of;
  ReplyTable replies;
  // The processor time of the whole generator during the run.
  int64_t cpu_ns = 0;
  bool is_realtime = false;
};

// Writes the file that loadtest/drive/generator.py reads. The .cc describes its layout.
base::Status WriteOutcome(const Outcome& outcome, const std::string& path);

}  // namespace millpond::load_generator
