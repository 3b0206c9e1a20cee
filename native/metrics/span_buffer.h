#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/base/trace_context.h"
#include "native/metrics/request_phases.h"
#include "native/metrics/request_recorder.h"

namespace millpond::metrics {

// One request that has ended, for a trace that its client samples.
struct RequestSpan {
  base::TraceContext context;
  Method method = Method::kPredict;
  std::string model;               // as asked for; empty where the request does not say
  std::optional<int64_t> version;  // that it reached
  base::Status status;
  int64_t received_ns = 0;  // on base::MonotonicNs's clock
  PhaseTimes times;
  size_t request_bytes = 0;
  size_t response_bytes = 0;
};

// Spans on their way from the threads that serve to the one that exports them.
//
// Thread: Admit and Put from any, at once; Take from one at a time. Lock-free, and no request
// waits: what does not fit is dropped and counted. Nobody is woken: who takes comes round by
// itself, as a wake-up would cost a request more than all the rest here. It is a ring of slots with
// a turn each (Vyukov's bounded queue, 1024cores.net). A thread that is interrupted while it fills
// its slot hides what is behind it until it goes on.
class SpanBuffer {
 public:
  struct Limits {
    size_t capacity = 1024;  // a power of two
    int64_t per_second_max = 200;
  };
  struct DroppedCounts {
    int64_t over_rate = 0;
    int64_t full = 0;
  };

  explicit SpanBuffer(Limits limits);
  SpanBuffer(const SpanBuffer&) = delete;
  SpanBuffer& operator=(const SpanBuffer&) = delete;

  // Whether the second of `now_ns` has room for another span; where not, that is one dropped. Ask
  // before the span is made.
  bool Admit(int64_t now_ns);
  void Put(RequestSpan span);

  // The oldest first.
  std::vector<RequestSpan> Take(size_t count_max);
  DroppedCounts dropped() const;

 private:
  struct Slot {
    // Equal to a position of the ring: free for who fills that one. One more: filled.
    std::atomic<size_t> turn;
    RequestSpan span;
  };

  const Limits limits_;
  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  size_t take_position_ = 0;
  // What threads that serve write, away from what they only read.
  alignas(64) std::atomic<size_t> put_position_{0};
  // The second, and behind it in kCountBits how many spans it had.
  std::atomic<uint64_t> second_and_count_{0};
  std::atomic<int64_t> over_rate_count_{0};
  std::atomic<int64_t> full_count_{0};
};

}  // namespace millpond::metrics
