#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::rest {

// The reply to a request that was answered.
struct RestReply {
  base::ReplyBytes body;
  std::string content_type = "application/json";
  // The number of bytes of `body` that are JSON, if binary data follow the JSON.
  std::optional<size_t> json_bytes;
};

// Answers a method of TensorFlow Serving's REST API on one servable: from an inflated body to a
// reply's body, both JSON. `body` is only read, and needs no padding.
//
// Any number of threads at once. The reply owns its bytes, so the servable's handle need not
// outlive it.
//
// Returns INVALID_ARGUMENT for a body that is not JSON or does not fit the method, and for a value
// of another type, range or shape than the signature's. Also returns it for outputs without a
// common first dimension if rows are to be made of them. Returns FAILED_PRECONDITION for an unknown
// signature, and for a signature of another method. Returns RESOURCE_EXHAUSTED for a tensor larger
// than base::kMaxTensorBytes, and for a reply beyond the run's limits. Returns UNIMPLEMENTED for an
// output of a dtype for which JSON has no value (complex, resource, variant). Returns
// DEADLINE_EXCEEDED or CANCELLED if `run` ends the run. Otherwise returns the error of the graph's
// kernels. Messages may contain any bytes of the body, and any number of them. A caller that puts a
// message into JSON must escape it.
//
// If `watch` is not null, it is in kDecode before the call. It enters kRun and then kEncode, as far
// as the request gets.
base::Status Predict(const servable::Servable& servable, std::string_view body,
                     const tensor::RunContext& run, RestReply* reply,
                     metrics::PhaseWatch* watch = nullptr);
base::Status Classify(const servable::Servable& servable, std::string_view body,
                      const tensor::RunContext& run, RestReply* reply,
                      metrics::PhaseWatch* watch = nullptr);
base::Status Regress(const servable::Servable& servable, std::string_view body,
                     const tensor::RunContext& run, RestReply* reply,
                     metrics::PhaseWatch* watch = nullptr);

}  // namespace millpond::rest
