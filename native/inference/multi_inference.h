#pragma once

#include <optional>
#include <string>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/examples.h"
#include "native/inference/model_spec.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tf/run_context.h"

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

// INVALID_ARGUMENT where the bytes are no MultiInferenceRequest, or have more tasks than
// base::kMaxNamesPerRequest. Borrows them.
base::Status DecodeMultiInferenceRequest(base::WireReader proto, MultiInferenceRequest* request);

// The one version that all tasks mean: that of the first task that names a version or label.
// INVALID_ARGUMENT where a task names no model, or two name different ones, or different versions:
// the answer is one version's.
base::StatusOr<ModelSpec> SpecOfAllTasks(const MultiInferenceRequest& request);

// Returns the names of the tasks' signatures, sorted: the same for requests that run the same.
std::string SignatureNamesOf(const MultiInferenceRequest& request);

// Answers the request with a serialized MultiInferenceResponse: one result a task, in their order.
// All signatures get the same examples, also if their inputs are different tensors of the graph, in
// one run if the version can (Servable::RunTogether). Nothing runs unless all tasks can.
//
// INVALID_ARGUMENT: a signature twice, or one that its task's method cannot run. UNIMPLEMENTED: a
// method_name other than classify's and regress's. Else as Classify and Regress.
base::Status AnswerMultiInference(const servable::Servable& servable,
                                  const MultiInferenceRequest& request, const tf::RunContext& run,
                                  base::ReplyBytes* reply, metrics::PhaseWatch* watch = nullptr);

}  // namespace millpond::inference
