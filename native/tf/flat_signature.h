#pragma once

#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/signature.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// The part of a graph that computes a signature, with the functions that it calls in their places.
// Loops and conditionals stay single nodes.
struct FlatSignature {
  // Returns the error of the graph if it cannot be read.
  static base::StatusOr<FlatSignature> Make(const tensorflow::MetaGraphDef& meta_graph,
                                            const tensor::Signature& signature);

  std::unique_ptr<tensorflow::FunctionLibraryDefinition> functions;
  std::unique_ptr<tensorflow::Graph> graph;
  // Placeholders and nodes of one output, in the signature's order.
  std::vector<tensorflow::Node*> inputs;
  std::vector<tensorflow::Node*> outputs;
};

}  // namespace millpond::tf
