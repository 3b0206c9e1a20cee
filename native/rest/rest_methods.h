#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tf/run_context.h"

namespace millpond::rest {

// What goes back to a client whose request was answered.
struct RestReply {
  base::ReplyBytes body;
  std::string content_type = "application/json";
  // Where binary data follow the JSON in `body`: how many bytes are JSON.
  std::optional<size_t> json_bytes;
};

// The methods of TensorFlow Serving's REST API on one servable: a JSON body, already inflated, in;
// a JSON body out. `body` is only read, and needs no padding.
//
// Any number of threads at once. The reply owns its bytes: the servable's handle need not outlive
// it.
//
// INVALID_ARGUMENT: a body that is no JSON or not what the method takes, a value of another type,
// range or shape than the signature's, outputs that have no common first dimension where rows are
// to be made of them. FAILED_PRECONDITION: no such signature, or one that is not for the method.
// RESOURCE_EXHAUSTED: a tensor of more than base::kMaxTensorBytes, a reply beyond the run's limits.
// UNIMPLEMENTED: an output of a dtype that JSON has no value for (complex, resource, variant).
// DEADLINE_EXCEEDED, CANCELLED: as `run` says. Else what the graph's kernels say. Messages may hold
// any bytes of the body, and as many: whoever puts one into JSON escapes it.
//
// `watch`, where there is one, is in kDecode before it, and in kRun and then in kEncode as far as
// it gets.
base::Status Predict(const servable::Servable& servable, std::string_view body,
                     const tf::RunContext& run, RestReply* reply,
                     metrics::PhaseWatch* watch = nullptr);
base::Status Classify(const servable::Servable& servable, std::string_view body,
                      const tf::RunContext& run, RestReply* reply,
                      metrics::PhaseWatch* watch = nullptr);
base::Status Regress(const servable::Servable& servable, std::string_view body,
                     const tf::RunContext& run, RestReply* reply,
                     metrics::PhaseWatch* watch = nullptr);

}  // namespace millpond::rest
