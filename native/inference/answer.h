#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/servable/servable.h"
#include "native/tf/run_context.h"

namespace millpond::inference {

// Answers a serialized request of PredictionService from one servable, as its clients are answered:
// what a warm-up record is replayed by. `method` is the service's name for it: "Predict",
// "Classify", "Regress" or "MultiInference"; UNIMPLEMENTED for any other. The request's model_spec
// says which signature; its name and version are not looked at.
//
// A request that runs for longer than `ns_max` ends with FAILED_PRECONDITION, at its next kernel:
// the version is broken, and neither a loader nor a retry must wait for it.
base::StatusOr<std::string> AnswerRequest(const servable::Servable& servable,
                                          std::string_view method, base::WireReader request,
                                          int64_t ns_max = tf::RunContext::kNoDeadline);

}  // namespace millpond::inference
