#pragma once

#include "native/base/status.h"
#include "native/inference/predict_codec.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::inference {

// Finds what a PredictRequest asks for, validates its inputs against the signature and decodes
// them.
//
// Returns FAILED_PRECONDITION for an unknown signature. Returns INVALID_ARGUMENT for inputs that
// are missing, extra or misnamed, or of another dtype or shape. Also returns it for an
// output_filter with an unknown or duplicate name.
base::Status PreparePredict(const servable::Servable& servable, const PredictRequest& request,
                            servable::PreparedRun* run);

// Returns the reply of a run that has succeeded, with its results. It points into the servable's
// signature, so the servable's handle must outlive it. Its outputs may alias the version's
// parameters.
PredictReply PredictReplyOf(servable::PreparedRun* run);

// Answers a request by a run of its own: warm-up records and replayed requests. Returns the errors
// of PreparePredict, DEADLINE_EXCEEDED or CANCELLED if `context` ends the run, and otherwise the
// error of the graph's kernels.
base::Status Predict(const servable::Servable& servable, const PredictRequest& request,
                     const tensor::RunContext& context, PredictReply* reply);

// Makes the callable of requests for the same outputs of the same signature. Returns the errors of
// Servable::MakeCallable, and those of Predict about the signature and the output_filter. The
// inputs are ignored.
base::Status MakeCallable(const servable::Servable& servable, const PredictRequest& request);

}  // namespace millpond::inference
