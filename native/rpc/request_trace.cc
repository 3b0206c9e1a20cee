#include "native/rpc/request_trace.h"

#include <string>
#include <utility>

namespace millpond::rpc {
std::optional<base::TraceContext> FindTraceContext(const Call& call) {
  const auto header = call.FindMetadata("traceparent");
  auto context = header ? base::ParseTraceparent(*header) : std::nullopt;
  if (!context) return {};
  if (const auto state = call.FindMetadata("tracestate")) context->state = *state;
  return context;
}

void RequestTrace::Note(const servable::ServableHandle& handle, const std::string& unmatched_model,
                        const metrics::PhaseTimes& times, int64_t now_ns) {
  ended_ = {unmatched_model, std::nullopt, times, now_ns};
  if (!handle) return;
  ended_->model = handle->id().name;
  ended_->version = handle->id().version;
}

void RequestTrace::OfferSampled(const Call& call, const base::Status& status,
                                size_t response_bytes) {
  auto context = FindTraceContext(call);
  if (!context || !context->is_sampled || !spans_->Admit(ended_->now_ns)) return;
  metrics::RequestSpan span;
  span.context = std::move(*context);
  span.method = method_;
  span.model = std::move(ended_->model);
  span.version = ended_->version;
  span.status = status;
  span.received_ns = call.received_ns();
  span.times = ended_->times;
  span.request_bytes = call.request().remaining_bytes();
  span.response_bytes = response_bytes;
  spans_->Put(std::move(span));
}

}  // namespace millpond::rpc
