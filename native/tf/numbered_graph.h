#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/signature.h"
#include "native/tf/flat_signature.h"
#include "native/tf/graph_cut.h"
#include "native/tf/graph_names.h"
#include "native/tf/integer_range.h"
#include "native/tf/resource_reads.h"
#include "native/tf/row_value.h"
#include "native/tf/split_limits.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {

class XlaCapability;

inline std::string TensorName(const std::string& node, int output) {
  return node + ":" + std::to_string(output);
}

// Returns true for programs of StableHLO, as JAX exports them.
inline bool IsModule(const tensorflow::Node& node) { return node.type_string() == "XlaCallModule"; }

// The indices of a look-up, which must be below `sizes`: one size, or one for each index of a
// tuple.
struct IndexCheck {
  NodeOutput indices;
  std::vector<int64_t> sizes;
};

// A flat signature as a cut needs it: its nodes by number, each after its inputs, and for each node
// whether the device can have it, and for each tensor whether it can cross. Borrows all.
class NumberedGraph {
 public:
  NumberedGraph(const FlatSignature& flat, const tensor::Signature& signature,
                const SplitLimits& limits)
      : flat_(flat), signature_(signature), limits_(limits) {}

  // Call it first, once. Returns UNIMPLEMENTED for a graph with a loop of TensorFlow 1.
  base::Status Number();

  const tensorflow::Node& node(int number) const { return *nodes_[number]; }
  int NumberOf(const tensorflow::Node* node) const { return numbers_.at(node); }
  int NumberOf(std::string_view name) const { return by_name_.at(std::string(name)); }
  NodeOutput OutputOf(const std::string& input) const;
  const tensorflow::NodeDef& definition(int number) const { return definitions_[number]; }
  size_t size() const { return nodes_.size(); }
  // Why a node must stay on the host; "" if it need not.
  const std::string& reason(int number) const { return reasons_[number]; }
  tensorflow::DataType dtype(const NodeOutput& tensor) const {
    return nodes_[tensor.node]->output_type(tensor.output);
  }
  // The dimensions of a tensor of rows, of which the first is open; nothing for another tensor.
  const std::optional<std::vector<int64_t>>& dims(const NodeOutput& tensor) const {
    return dims_[tensor.node][tensor.output];
  }
  const RowValue& value(const NodeOutput& tensor) const {
    return values_[tensor.node][tensor.output];
  }

  // Returns what must be checked beside a look-up on the device; nothing if its indices are known
  // to be right.
  const std::optional<IndexCheck>& index_check(int number) const { return index_checks_[number]; }

  // Returns true for nodes that hand a variable or its value on.
  bool IsCarrier(int number) const;
  ResourceKey VariableOf(int handle) const;

  const std::vector<CutNode>& cut_nodes() const { return cut_nodes_; }
  const std::vector<NodeOutput>& outputs() const { return outputs_; }
  // Nodes that may fail a request although nothing reads them.
  std::vector<int> Effects() const;
  // Returns true for the nodes of a branch of a conditional of TensorFlow 1, which compute nothing
  // if the other branch is taken.
  bool MayBeLeftOut(int number) const { return conditional_depths_[number] > 0; }

 private:
  // Returns what a node hands on, so that nothing travels only to be handed on.
  NodeOutput BehindIdentities(const tensorflow::Node* node) const;

  void Analyze();

  // Adds the outputs of a module of JAX, whose rows the analysis does not follow, to what it takes
  // for rows. The device part then runs for the rows that a request has, and for no others.
  static void AddModuleOutputs(const tensorflow::Node& node, tensorflow::SignatureDef* inputs);

  void Describe();

  void DescribeNode(int number, bool may_be_left_out);

  void SetRows(const NodeOutput& tensor);

  // Returns why a node must stay on the host, "" if it need not.
  std::string WhyNotOnDevice(const tensorflow::Node& node, const XlaCapability& capability);

  std::string WhyNotSecondOperand(int number);
  std::string WhyNotShift(int number);

  // Returns the node that makes the handle of the variable that a tensor is, or has the value of.
  std::optional<int> HandleBehind(NodeOutput tensor) const;

  // Decides how the indices of a look-up are checked. Returns why they cannot be.
  std::string CheckIndices(int number);

  // Returns the sizes of the dimensions that a look-up's indices are for; none if they are not
  // known.
  std::vector<int64_t> IndexedSizes(int number) const;

  // Returns `count` sizes from dimension `first` on; none if one is not known.
  static std::vector<int64_t> SizesOf(const RowValue& table, int64_t first, int64_t count);

  static int64_t BatchDims(const tensorflow::Node& node);

  NodeOutput InputOf(int number, int input) const;
  const RowValue& InputValue(int number, int input) const { return value(InputOf(number, input)); }

  // Returns the integers that a tensor may have, from the `depth` nodes before it at most.
  IntegerRange Range(const NodeOutput& tensor, int depth);

  const FlatSignature& flat_;
  const tensor::Signature& signature_;
  const SplitLimits& limits_;
  std::vector<tensorflow::Node*> nodes_;
  std::unordered_map<const tensorflow::Node*, int> numbers_;
  std::unordered_map<std::string, int> by_name_;
  std::vector<NodeOutput> outputs_;
  std::vector<tensorflow::NodeDef> definitions_;
  std::vector<std::vector<RowValue>> values_;
  std::vector<std::vector<std::optional<std::vector<int64_t>>>> dims_;  // of tensors of rows
  std::vector<int> conditional_depths_;  // the conditionals of TensorFlow 1 around each node
  std::vector<std::string> reasons_;
  std::vector<std::optional<IndexCheck>> index_checks_;
  std::vector<CutNode> cut_nodes_;
  // Ranges by tensor and depth. Many paths may lead to a tensor, and each is asked once.
  std::map<std::pair<NodeOutput, int>, IntegerRange> ranges_;
};

}  // namespace millpond::tf
