#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/signature.h"
#include "native/tf/resource_reads.h"
#include "native/tf/split_limits.h"

namespace tensorflow {
class GraphDef;
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// A signature in two parts: a host part, which TensorFlow's kernels run, and a device part behind
// it, which XLA can compile.
//
// Theory. What XLA cannot compile stays on the host: strings, tables, tf.Example, and assertions,
// which XLA would leave out. What it waits for stays there too (graph_cut.h). Between the parts
// only tensors cross whose first dimension is the rows, and whose other dimensions are known, as
// the row analysis shows. The device part recomputes what the number of rows alone tells, like the
// shape for a reshape.
struct SignatureSplit {
  // A tensor that is there before: one of a list, or one of another.
  struct Origin {
    bool is_first = false;  // which list
    size_t index = 0;
  };

  SignatureSplit();
  ~SignatureSplit();
  SignatureSplit(SignatureSplit&&) noexcept;
  SignatureSplit& operator=(SignatureSplit&&) noexcept;

  // The device part as a graph and a signature of its own; the variables are the model's.
  std::unique_ptr<tensorflow::MetaGraphDef> device_graph;
  tensor::Signature device;
  // Each input of the device part: an input of the signature (first), or an output of the host
  // part.
  std::vector<Origin> device_inputs;

  // The nodes to add to the model's session for the host part, and its signature there: its inputs
  // are those of the model's signature.
  std::unique_ptr<tensorflow::GraphDef> host_graph;
  tensor::Signature host;  // without outputs: the signature has no host part
  // Each output of the signature: of the device part (first), or of the host part.
  std::vector<Origin> outputs;
  // True if the last output of the device part, which is none of the signature's, says of each row
  // whether its indices are within their tables. The CPU refuses others, and XLA takes them.
  bool has_index_check = false;

  // True if the graph does not show that the rows of the device part are independent: it may run
  // for just the rows that a request has.
  bool needs_exact_rows = false;

  // The ops for whose sake there is a host part, sorted.
  std::set<std::string> host_ops;
  // The variables of the device part.
  struct Variable {
    int64_t bytes = 0;
    bool is_table = false;  // only look-ups read it
  };
  std::map<ResourceKey, Variable> variables;

  bool has_host_part() const { return !host.outputs.empty(); }
};

// Splits a signature of a model. `prefix` begins the names of the nodes that the host part adds.
// Returns UNIMPLEMENTED if there is no device part, with the node that is in its way. Cost: about
// 20 us a node.
base::StatusOr<SignatureSplit> SplitSignature(const tensorflow::MetaGraphDef& meta_graph,
                                              const tensor::Signature& signature,
                                              const std::string& prefix, const SplitLimits& limits);

}  // namespace millpond::tf
