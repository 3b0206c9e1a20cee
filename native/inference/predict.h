#pragma once

#include "native/base/status.h"
#include "native/inference/predict_codec.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::inference {

// Answers a PredictRequest from one servable: it decodes the inputs, validates them against the
// signature, and runs. Client requests, warm-up records and replayed requests all take this path.
//
// Returns FAILED_PRECONDITION for an unknown signature. Returns INVALID_ARGUMENT for inputs that
// are missing, extra or misnamed, or of another dtype or shape. Also returns it for an
// output_filter with an unknown or duplicate name. Returns DEADLINE_EXCEEDED or CANCELLED if `run`
// ends the run. Otherwise returns the error of the graph's kernels.
//
// `reply` points into the servable's signature, so the servable's handle must outlive it. Its
// outputs may alias the version's parameters. If `watch` is not null, it is in kDecode before the
// call. It enters kRun and then kEncode, as far as the request gets.
base::Status Predict(const servable::Servable& servable, const PredictRequest& request,
                     const tensor::RunContext& run, PredictReply* reply,
                     metrics::PhaseWatch* watch = nullptr);

// Prepares requests for the same outputs of the same signature (Servable::Prepare). Returns the
// errors of Servable::Prepare, and the errors of Predict about the signature and the output_filter.
// The inputs are ignored.
base::Status Prepare(const servable::Servable& servable, const PredictRequest& request);

}  // namespace millpond::inference
