#pragma once

#include <grpc/compression.h>
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/load_generator/outcome.h"
#include "native/load_generator/plan.h"

namespace millpond::load_generator {

// The settings of the loop's connections.
struct ChannelOptions {
  std::string root_certificates;                                // PEM; empty: no TLS
  grpc_compression_algorithm compression = GRPC_COMPRESS_NONE;  // for the requests
};

// Sends the requests of a plan at their times, and records when each was issued and completed. In
// an open loop it sends each request on time, whether or not earlier requests were answered. In a
// closed loop the plan limits the requests in flight.
//
// Two threads: the caller of Run issues requests and sleeps in between. A thread of the loop waits
// in gRPC for replies. Neither spins, because the server under load has the same cores. Both
// threads, and gRPC's own, have the scheduling of the thread that made the loop. The plan outlives
// the loop.
class IssueLoop {
 public:
  IssueLoop(const Plan& plan, const std::string& target, const ChannelOptions& options = {});

  // Waits until each channel is connected. Returns UNAVAILABLE at the timeout.
  base::Status Connect(int64_t timeout_ns);

  // Issues requests from `start_ns` (CLOCK_MONOTONIC) until the plan ends or Stop is called. Then
  // waits for the replies of all issued requests, and returns their outcome. Call it once.
  Outcome Run(int64_t start_ns);

  // Stops issuing requests. Any thread may call it. The loop notices it within kStopDelayNs.
  void Stop() { is_stopping_ = true; }

  // The longest time until a stop is noticed if the next request is far away.
  static constexpr int64_t kStopDelayNs = 20'000'000;

 private:
  struct Call;

  bool SleepUntil(int64_t instant_ns) const;
  bool WaitForRoom();
  void MakeRoom();
  void Issue(int64_t request, Outcome* outcome);
  void TakeReplies(Outcome* outcome);

  const Plan& plan_;
  // The payloads as slices of gRPC, so that a request needs no copy of its payload.
  std::vector<grpc::Slice> payloads_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  grpc::CompletionQueue queue_;
  std::mutex in_flight_mutex_;
  std::condition_variable has_room_;
  int64_t in_flight_count_ = 0;  // guarded by in_flight_mutex_; counted only in a closed loop
  std::atomic<bool> is_stopping_ = false;
};

}  // namespace millpond::load_generator
