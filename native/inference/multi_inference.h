#pragma once

#include <optional>
#include <string>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/inference/prepared.h"
#include "native/inference/tf_example_request.h"
#include "native/servable/servable.h"

namespace millpond::inference {

// A MultiInferenceRequest (tensorflow_serving/apis/inference.proto): several signatures of one
// version on the same examples.
struct MultiInferenceRequest {
  struct Task {
    std::optional<ModelSpec> model_spec;
    std::string method_name;
  };

  std::vector<Task> tasks;
  ExampleInput input;
};

// Decodes a request that borrows the bytes. Returns INVALID_ARGUMENT if they are not a
// MultiInferenceRequest, or have more tasks than base::kMaxNamesPerRequest.
base::Status DecodeMultiInferenceRequest(base::WireReader proto, MultiInferenceRequest* request);

// Returns the one version that all tasks mean: the version of the first task that names a version
// or label. Returns INVALID_ARGUMENT if a task does not name a model, or if two tasks name
// different models or versions. One version has to answer the whole request.
base::StatusOr<ModelSpec> SpecOfAllTasks(const MultiInferenceRequest& request);

// Returns the names of the tasks' signatures, sorted, so that requests that run the same signatures
// have equal results.
std::string SignatureNamesOf(const MultiInferenceRequest& request);

// Prepares the request, whose reply is a serialized MultiInferenceResponse. It has one result for
// each task, in their order. All signatures get the same examples, also if their inputs are
// different tensors of the graph. They run in one run if the version can do so
// (Servable::RunTogether). No task runs unless all tasks can run.
//
// Returns INVALID_ARGUMENT for a duplicate signature, and for a signature that its task's method
// cannot run. Returns UNIMPLEMENTED for a method_name of neither classify nor regress.
// Other errors are as in PrepareClassify and PrepareRegress.
base::Status PrepareMultiInference(const servable::Servable& servable,
                                   const MultiInferenceRequest& request,
                                   Prepared<base::ReplyBytes>* prepared);

}  // namespace millpond::inference
