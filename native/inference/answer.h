#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::inference {

// Answers a serialized request of PredictionService from one servable, with the bytes that a client
// would get. It replays warm-up records. `method` is the method's name in the service: "Predict",
// "Classify", "Regress" or "MultiInference". Returns UNIMPLEMENTED for any other method. The
// request's model_spec selects the signature; its name and version are ignored.
//
// A request that runs for longer than `ns_max` ends at its next kernel, with FAILED_PRECONDITION.
// This code marks the version as broken, so that neither a loader nor a retry waits for it. A run
// ends at its next kernel, with CANCELLED, once `is_cancelled` is true; null: never. Unless
// `may_write`, it ends with PERMISSION_DENIED before it changes a variable.
base::StatusOr<std::string> AnswerRequest(const servable::Servable& servable,
                                          std::string_view method, base::WireReader request,
                                          int64_t ns_max = tensor::RunContext::kNoDeadline,
                                          const std::atomic<bool>* is_cancelled = nullptr,
                                          bool may_write = true);

// Makes the callable of requests with the signature and the set of outputs of a serialized
// PredictRequest, whose inputs are ignored.
base::Status MakeCallable(const servable::Servable& servable, base::WireReader request);

}  // namespace millpond::inference
