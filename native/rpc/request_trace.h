#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "native/metrics/span_buffer.h"
#include "native/rpc/call.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// Returns the trace that `call` is a part of; nothing if its client names no trace.
std::optional<base::TraceContext> FindTraceContext(const Call& call);

// Records the span of one call if its client samples the trace. On the call's thread.
//
// Cost: a test of a pointer if tracing is off (`spans` is null). Otherwise it copies the model's
// name and version before the version is released. It looks at the call's metadata after the answer
// is written, so that no client waits for that.
class RequestTrace {
 public:
  // Borrows `spans`.
  RequestTrace(metrics::SpanBuffer* spans, metrics::Method method)
      : spans_(spans), method_(method) {}

  // Notes the end of the call. If it reached no version, `handle` is empty, and `unmatched_model`
  // is the model that the request named, or empty.
  void End(const servable::ServableHandle& handle, const std::string& unmatched_model,
           const metrics::PhaseTimes& times, int64_t now_ns) {
    if (spans_ != nullptr) Note(handle, unmatched_model, times, now_ns);
  }
  // Offers the span. Called after End, once the answer is written, on the same thread.
  void Offer(const Call& call, const base::Status& status, size_t response_bytes) {
    if (spans_ != nullptr) OfferSampled(call, status, response_bytes);
  }

 private:
  void Note(const servable::ServableHandle& handle, const std::string& unmatched_model,
            const metrics::PhaseTimes& times, int64_t now_ns);
  void OfferSampled(const Call& call, const base::Status& status, size_t response_bytes);

  struct Ended {
    std::string model;  // a copy, because the version may be unloaded
    std::optional<int64_t> version;
    metrics::PhaseTimes times;
    int64_t now_ns;
  };

  metrics::SpanBuffer* const spans_;
  const metrics::Method method_;
  std::optional<Ended> ended_;
};

}  // namespace millpond::rpc
