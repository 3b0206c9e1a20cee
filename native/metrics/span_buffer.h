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
#include "native/metrics/request_recorder.h"

namespace millpond::metrics {

// A request that has ended, for a trace that its client samples.
struct RequestSpan {
  base::TraceContext context;
  Method method = Method::kPredict;
  std::string model;               // as in the request; empty if the request names no model
  std::optional<int64_t> version;  // the version that the request reached
  base::Status status;
  int64_t received_ns = 0;  // by base::MonotonicNs's clock
  PhaseTimes times;
  size_t request_bytes = 0;
  size_t response_bytes = 0;
};

// The spans on their way from the request threads to the thread that exports them.
//
// Thread: any thread may call Admit and Put at any time; one thread at a time may call Take.
// Lock-free, and no request waits: a span that does not fit is dropped and counted. Put wakes no
// thread, because a wake-up would cost a request more than everything else here. The exporting
// thread polls instead.
//
// The buffer is a ring of slots with a turn each (Vyukov's bounded queue, 1024cores.net). If a
// thread is interrupted while it fills its slot, it hides the slots behind it until it goes on.
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

  // Returns true if the second of `now_ns` has room for another span. Otherwise counts a dropped
  // span. To be called before the span is made.
  bool Admit(int64_t now_ns);
  void Put(RequestSpan span);

  // Takes up to `count_max` spans, oldest first.
  std::vector<RequestSpan> Take(size_t count_max);
  DroppedCounts dropped() const;

 private:
  struct Slot {
    // A position of the ring while the slot is free for the thread that fills that position. The
    // position plus one once the slot is filled.
    std::atomic<size_t> turn;
    RequestSpan span;
  };

  const Limits limits_;
  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  size_t take_position_ = 0;
  // The members that request threads write, on a cache line apart from the members that they only
  // read.
  alignas(64) std::atomic<size_t> put_position_{0};
  // The second, and in the low kCountBits the number of its spans.
  std::atomic<uint64_t> second_and_count_{0};
  std::atomic<int64_t> over_rate_count_{0};
  std::atomic<int64_t> full_count_{0};
};

}  // namespace millpond::metrics
