#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "native/metrics/span_buffer.h"
#include "native/rpc/call.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// The trace that `call` is a part of; nothing where its client names none. Sorts the call's
// metadata (Call::FindMetadata).
std::optional<base::TraceContext> FindTraceContext(const Call& call);

// What becomes the span of one call, where its client samples the trace. On the call's thread.
//
// Cost: a test of a pointer where nothing is traced (`spans` null). Where something is, what the
// call was is noted before its version is let go, and its metadata is looked at once the answer is
// on its way: no client waits for that.
class RequestTrace {
 public:
  // Borrows `spans`.
  RequestTrace(metrics::SpanBuffer* spans, metrics::Method method)
      : spans_(spans), method_(method) {}

  // `handle` is empty where no version was reached; then `unmatched_model` is the model that the
  // request asked for, or empty where it does not say.
  void End(const servable::ServableHandle& handle, const std::string& unmatched_model,
           const metrics::PhaseTimes& times, int64_t now_ns) {
    if (spans_ != nullptr) Note(handle, unmatched_model, times, now_ns);
  }
  // After End and the answer, within MethodHandler::Handle.
  void Offer(const Call& call, const base::Status& status, size_t response_bytes) {
    if (spans_ != nullptr) OfferSampled(call, status, response_bytes);
  }

 private:
  void Note(const servable::ServableHandle& handle, const std::string& unmatched_model,
            const metrics::PhaseTimes& times, int64_t now_ns);
  void OfferSampled(const Call& call, const base::Status& status, size_t response_bytes);

  struct Ended {
    std::string model;  // a copy: the version's own goes with it
    std::optional<int64_t> version;
    metrics::PhaseTimes times;
    int64_t now_ns;
  };

  metrics::SpanBuffer* const spans_;
  const metrics::Method method_;
  std::optional<Ended> ended_;
};

}  // namespace millpond::rpc
