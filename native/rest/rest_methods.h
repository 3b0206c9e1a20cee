#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/prepared.h"
#include "native/servable/servable.h"

namespace millpond::rest {

// The reply to a request that was answered.
struct RestReply {
  base::ReplyBytes body;
  std::string content_type = "application/json";
  // The number of bytes of `body` that are JSON, if binary data follow the JSON.
  std::optional<size_t> json_bytes;
};

// A decoded request over HTTP. The reply owns its bytes, so the servable's handle need not outlive
// it.
using PreparedRest = inference::Prepared<RestReply>;

// Prepares a request to a method of TensorFlow Serving's REST API: from an inflated body, which is
// JSON, to its run and the body of its reply, also JSON. `body` is only read, and needs no padding.
// `prepared` has its run's context.
//
// Any number of threads at once.
//
// Returns INVALID_ARGUMENT for a body that is not JSON or does not fit the method, and for a value
// of another type, range or shape than the signature's. Returns FAILED_PRECONDITION for an unknown
// signature, and for a signature of another method. Returns RESOURCE_EXHAUSTED for a tensor larger
// than base::kMaxTensorBytes.
//
// The encoding of the reply returns RESOURCE_EXHAUSTED beyond the run's limits. It returns
// INVALID_ARGUMENT for outputs without a common first dimension if rows are to be made of them, and
// UNIMPLEMENTED for an output of a dtype for which JSON has no value (complex, resource, variant).
// It returns DEADLINE_EXCEEDED or CANCELLED if the client does not wait for the reply any more.
//
// Messages may contain any bytes of the body, and any number of them. A caller that puts a message
// into JSON must escape it.
base::Status PreparePredict(const servable::Servable& servable, std::string_view body,
                            PreparedRest* prepared);
base::Status PrepareClassify(const servable::Servable& servable, std::string_view body,
                             PreparedRest* prepared);
base::Status PrepareRegress(const servable::Servable& servable, std::string_view body,
                            PreparedRest* prepared);

}  // namespace millpond::rest
