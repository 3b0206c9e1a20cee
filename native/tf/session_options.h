#pragma once

#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace millpond::tf {

// Returns the options of a version's session: its threads and executors (CurrentRuntimeOptions),
// and the optimizers that can do something for its graph.
tensorflow::SessionOptions MakeSessionOptions(const tensorflow::MetaGraphDef& meta_graph);

// Returns true if a node of the graph or of its functions is a branch or a loop that calls
// functions, like If and While.
bool HasFunctionalControlFlow(const tensorflow::GraphDef& graph);

}  // namespace millpond::tf
