#include "native/tf/signature_split.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "native/tf/failing_ops.h"
#include "native/tf/flat_signature.h"
#include "native/tf/graph_cut.h"
#include "native/tf/graph_names.h"
#include "native/tf/handle_search.h"
#include "native/tf/numbered_graph.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::DataType;
using tensorflow::GraphDef;
using tensorflow::Node;
using tensorflow::NodeDef;
using Dims = std::vector<int64_t>;

// Returns false for ops that say little about why a part stays on the host.
bool IsTelling(const std::string& op) {
  return op != "Const" && op != "Identity" && op != "Shape" && op.rfind("HashTable", 0) != 0;
}

tensor::TensorSpec SpecOf(std::string name, std::string tensor_name, int dtype,
                          const std::optional<Dims>& dims) {
  tensor::TensorSpec spec;
  spec.name = std::move(name);
  spec.tensor_name = std::move(tensor_name);
  spec.dtype = dtype;
  spec.is_rank_known = dims.has_value();
  if (dims) spec.dims = *dims;
  return spec;
}

// --- The parts as graphs ---

NodeDef* AddNode(const std::string& name, const char* op, DataType dtype, GraphDef* graph) {
  NodeDef* const node = graph->add_node();
  node->set_name(name);
  node->set_op(op);
  (*node->mutable_attr())["T"].set_type(dtype);
  return node;
}

// Adds a node of two inputs. An op of bools has no `dtype`.
NodeDef* AddPair(const std::string& name, const char* op, std::optional<DataType> dtype,
                 const std::string& first, const std::string& second, GraphDef* graph) {
  NodeDef* const node = graph->add_node();
  node->set_name(name);
  node->set_op(op);
  node->add_input(first);
  node->add_input(second);
  if (dtype) (*node->mutable_attr())["T"].set_type(*dtype);
  return node;
}

void AddIntegers(const std::string& name, DataType dtype, const Dims& dims, const Dims& integers,
                 GraphDef* graph) {
  NodeDef* const node = AddNode(name, "Const", dtype, graph);
  node->clear_attr();
  (*node->mutable_attr())["dtype"].set_type(dtype);
  tensorflow::TensorProto& value = *(*node->mutable_attr())["value"].mutable_tensor();
  value.set_dtype(dtype);
  for (const int64_t size : dims) value.mutable_tensor_shape()->add_dim()->set_size(size);
  for (const int64_t integer : integers) {
    // A TensorProto has the integers of all smaller types in one field.
    if (dtype == tensorflow::DT_INT64) {
      value.add_int64_val(integer);
    } else {
      value.add_int_val(static_cast<int32_t>(integer));
    }
  }
}

int64_t LargestOf(DataType dtype) {
  if (dtype == tensorflow::DT_INT16) return std::numeric_limits<int16_t>::max();
  if (dtype == tensorflow::DT_INT32) return std::numeric_limits<int32_t>::max();
  return std::numeric_limits<int64_t>::max();
}

void AddPlaceholder(const std::string& name, DataType dtype, GraphDef* graph) {
  NodeDef* const node = AddNode(name, "Placeholder", dtype, graph);
  node->clear_attr();
  (*node->mutable_attr())["dtype"].set_type(dtype);
}

// Adds nodes that compute integers of which the number of rows tells the elements: those of `name`
// are the sum of constants and of multiples of the rows of `rows`.
void AddCount(const std::string& name, const RowValue& value, DataType dtype,
              const tensor::TensorSpec& rows, GraphDef* graph) {
  Dims dims;
  for (const Quantity& size : value.dims) dims.push_back(size.value);
  Dims fixed;
  Dims factors;
  for (const Quantity& element : *value.elements) {
    const bool is_rows = element.kind == Quantity::Kind::kRows;
    fixed.push_back(is_rows ? 0 : element.value);
    factors.push_back(is_rows ? element.value : 0);
  }
  AddIntegers(name + "/fixed", dtype, dims, fixed, graph);
  AddIntegers(name + "/factors", dtype, dims, factors, graph);
  AddIntegers(name + "/begin", tensorflow::DT_INT32, {1}, {0}, graph);
  AddIntegers(name + "/end", tensorflow::DT_INT32, {1}, {1}, graph);
  NodeDef* const shape =
      AddNode(name + "/shape", "Shape", static_cast<DataType>(rows.dtype), graph);
  shape->add_input(rows.tensor_name);
  (*shape->mutable_attr())["out_type"].set_type(dtype);
  NodeDef* const count = AddNode(name + "/rows", "StridedSlice", dtype, graph);
  for (const char* const input : {"/shape", "/begin", "/end", "/end"}) {
    count->add_input(name + input);
  }
  (*count->mutable_attr())["Index"].set_type(tensorflow::DT_INT32);
  (*count->mutable_attr())["shrink_axis_mask"].set_i(1);
  AddPair(name + "/scaled", "Mul", dtype, name + "/factors", name + "/rows", graph);
  AddPair(name, "AddV2", dtype, name + "/fixed", name + "/scaled", graph);
}

// Returns a node without what binds it to a place.
NodeDef Unplaced(const NodeDef& node) {
  NodeDef copy = node;
  copy.clear_device();
  copy.mutable_attr()->erase("_class");
  return copy;
}

class PartsMaker {
 public:
  PartsMaker(const NumberedGraph& graph, const GraphCut& cut, const FlatSignature& flat,
             const tensor::Signature& signature, std::string prefix)
      : graph_(graph), cut_(cut), flat_(flat), signature_(signature), prefix_(std::move(prefix)) {}

  SignatureSplit Make(const tensorflow::MetaGraphDef& meta_graph) {
    for (const NodeDef& node : meta_graph.graph_def().node()) ops_[node.name()] = node.op();
    *split_.device_graph->mutable_graph_def()->mutable_library() = meta_graph.graph_def().library();
    *split_.device_graph->mutable_graph_def()->mutable_versions() =
        meta_graph.graph_def().versions();
    split_.device.name = split_.host.name = signature_.name;
    MakeHostGraph();
    MakeDeviceGraph();
    AddOutputs();
    AddIndexFlag();
    return std::move(split_);
  }

 private:
  static std::string CrossingName(size_t index) {
    return "millpond_crossing_" + std::to_string(index);
  }
  static std::string CheckName(size_t index) { return "millpond_check_" + std::to_string(index); }
  static std::string CountName(size_t index) { return "millpond_count_" + std::to_string(index); }

  std::optional<size_t> InputOf(int number) const {
    const auto found = std::find(flat_.inputs.begin(), flat_.inputs.end(), &graph_.node(number));
    if (found == flat_.inputs.end()) return {};
    return static_cast<size_t>(found - flat_.inputs.begin());
  }

  // --- The host part ---

  // A handle is the model's own, because a table may have no other name than its node's.
  bool IsOfModel(int number) const {
    const Node& node = graph_.node(number);
    const auto found = ops_.find(node.name());
    return node.num_outputs() > 0 && node.output_type(0) == tensorflow::DT_RESOURCE &&
           node.num_inputs() == 0 && found != ops_.end() && found->second == node.type_string();
  }
  std::string HostName(int number) const {
    const std::string& name = graph_.node(number).name();
    return IsOfModel(number) ? name : prefix_ + name;
  }
  std::string HostTensor(const NodeOutput& tensor) const {
    return TensorName(HostName(tensor.node), tensor.output);
  }

  void MakeHostGraph() {
    GraphDef& host = *split_.host_graph;
    for (size_t i = 0; i < flat_.inputs.size(); ++i) {
      const std::string name = HostName(graph_.NumberOf(flat_.inputs[i]));
      AddPlaceholder(name, flat_.inputs[i]->output_type(0), &host);
      tensor::TensorSpec& input = split_.host.inputs.emplace_back(signature_.inputs[i]);
      input.tensor_name = TensorName(name, 0);
    }
    std::vector<std::string> effects;
    const std::vector<int> with_effects = graph_.Effects();
    for (size_t i = 0; i < graph_.size(); ++i) {
      const int number = static_cast<int>(i);
      if (!cut_.is_on_host[i] || InputOf(number)) continue;
      const std::string& op = graph_.node(number).type_string();
      if (!graph_.reason(number).empty() && IsTelling(op)) split_.host_ops.insert(op);
      if (std::find(with_effects.begin(), with_effects.end(), number) != with_effects.end()) {
        effects.push_back("^" + HostName(number));
      }
      if (!IsOfModel(number)) AddHostNode(number);
    }
    if (effects.empty()) return;
    const std::string name = prefix_ + "checked";
    AddIntegers(name, tensorflow::DT_INT32, {}, {1}, &host);
    for (const std::string& effect : effects) {
      host.mutable_node(host.node_size() - 1)->add_input(effect);
    }
    split_.host.outputs.push_back(
        SpecOf("checked", TensorName(name, 0), tensorflow::DT_INT32, Dims()));
  }

  void AddHostNode(int number) {
    NodeDef node = Unplaced(graph_.definition(number));
    node.set_name(HostName(number));
    node.clear_input();
    for (const std::string& input : graph_.definition(number).input()) {
      if (!IsControl(input)) {
        node.add_input(HostTensor(graph_.OutputOf(input)));
      } else if (cut_.is_on_host[graph_.NumberOf(NodeOf(input))]) {
        node.add_input("^" + HostName(graph_.NumberOf(NodeOf(input))));
      }
    }
    *split_.host_graph->add_node() = std::move(node);
  }

  // Returns the output of the host part that is a tensor.
  size_t HostOutput(const NodeOutput& tensor) {
    split_.host.outputs.push_back(SpecOf(graph_.node(tensor.node).name(), HostTensor(tensor),
                                         graph_.dtype(tensor), graph_.dims(tensor)));
    return split_.host.outputs.size() - 1;
  }

  // --- The device part ---

  void MakeDeviceGraph() {
    GraphDef& device = *split_.device_graph->mutable_graph_def();
    for (size_t i = 0; i < cut_.crossing.size(); ++i) {
      const NodeOutput& tensor = cut_.crossing[i];
      taken_[tensor] = CrossingName(i);
      AddPlaceholder(CrossingName(i), graph_.dtype(tensor), &device);
      const std::optional<size_t> input = InputOf(tensor.node);
      split_.device_inputs.push_back({input.has_value(), input ? *input : HostOutput(tensor)});
      split_.device.inputs.push_back(
          SpecOf(input ? signature_.inputs[*input].name : graph_.node(tensor.node).name(),
                 TensorName(CrossingName(i), 0), graph_.dtype(tensor), graph_.dims(tensor)));
    }
    for (size_t i = 0; i < cut_.counts.size(); ++i) {
      const NodeOutput& tensor = cut_.counts[i];
      taken_[tensor] = CountName(i);
      AddCount(CountName(i), graph_.value(tensor), graph_.dtype(tensor),
               split_.device.inputs.front(), &device);
    }
    for (size_t i = 0; i < graph_.size(); ++i) {
      const int number = static_cast<int>(i);
      if (!cut_.is_on_device[i]) continue;
      AddDeviceNode(number, &device);
      NoteVariable(number);
      split_.needs_exact_rows = split_.needs_exact_rows || IsModule(graph_.node(number));
      const auto& check = graph_.index_check(number);
      if (check) in_range_ = AddIndexCheck(*check, CheckName(i), in_range_, &device);
    }
  }

  void NoteVariable(int number) {
    const Node& node = graph_.node(number);
    if (node.type_string() != kHandleOp) return;
    DataType dtype = tensorflow::DT_INVALID;
    tensorflow::PartialTensorShape shape;
    GetNodeAttr(node.attrs(), "dtype", &dtype).IgnoreError();
    GetNodeAttr(node.attrs(), "shape", &shape).IgnoreError();
    SignatureSplit::Variable& variable = split_.variables[graph_.VariableOf(number)];
    variable.bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
    variable.is_table = IsOnlyLookedUp(number);
  }

  // Returns true if all nodes of the device part that read a variable look rows up in it.
  bool IsOnlyLookedUp(int handle) const {
    const std::vector<CutNode>& nodes = graph_.cut_nodes();
    std::set<int> carriers = {handle};
    for (size_t i = 0; i < graph_.size(); ++i) {
      const int number = static_cast<int>(i);
      if (!cut_.is_on_device[i]) continue;
      for (size_t input = 0; input < nodes[i].inputs.size(); ++input) {
        if (carriers.count(nodes[i].inputs[input].node) == 0) continue;
        if (graph_.IsCarrier(number)) {
          carriers.insert(number);
        } else if (input > 0 || !LooksUp(graph_.node(number).type_string())) {
          return false;
        }
      }
    }
    return true;
  }

  // Adds nodes that say for each row whether its indices are right. Returns the one that says
  // whether those of `before` are right too; "" is none before.
  std::string AddIndexCheck(const IndexCheck& check, const std::string& name,
                            const std::string& before, GraphDef* device) const {
    const DataType dtype = graph_.dtype(check.indices);
    const std::string indices = DeviceTensor(check.indices);
    const auto rank = static_cast<int64_t>(graph_.dims(check.indices)->size());
    Dims axes;
    for (int64_t axis = 1; axis < rank; ++axis) axes.push_back(axis);
    const bool is_tuple = check.sizes.size() > 1;
    // A size beyond the indices' type bounds none of them but its largest, which the CPU looks up.
    Dims sizes;
    for (const int64_t size : check.sizes) sizes.push_back(std::min(size, LargestOf(dtype)));
    AddIntegers(name + "/zero", dtype, {}, {0}, device);
    AddIntegers(name + "/sizes", dtype,
                is_tuple ? Dims{static_cast<int64_t>(sizes.size())} : Dims(), sizes, device);
    AddIntegers(name + "/axes", tensorflow::DT_INT32, {rank - 1}, axes, device);
    AddPair(name + "/at_least", "GreaterEqual", dtype, indices, name + "/zero", device);
    AddPair(name + "/below", "Less", dtype, indices, name + "/sizes", device);
    AddPair(name + "/right", "LogicalAnd", {}, name + "/at_least", name + "/below", device);
    NodeDef* const all = AddPair(name + "/all", "All", {}, name + "/right", name + "/axes", device);
    (*all->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
    if (before.empty()) return name + "/all";
    AddPair(name + "/both", "LogicalAnd", {}, before, name + "/all", device);
    return name + "/both";
  }

  std::string DeviceTensor(const NodeOutput& tensor) const {
    const auto taken = taken_.find(tensor);
    if (taken != taken_.end()) return taken->second;
    return TensorName(graph_.node(tensor.node).name(), tensor.output);
  }

  void AddDeviceNode(int number, GraphDef* device) {
    NodeDef node = Unplaced(graph_.definition(number));
    node.clear_input();
    for (const std::string& input : graph_.definition(number).input()) {
      if (IsControl(input)) {
        if (cut_.is_on_device[graph_.NumberOf(NodeOf(input))]) node.add_input(input);
        continue;
      }
      node.add_input(DeviceTensor(graph_.OutputOf(input)));
    }
    *device->add_node() = std::move(node);
  }

  void AddOutputs() {
    for (size_t i = 0; i < flat_.outputs.size(); ++i) {
      const NodeOutput tensor = graph_.outputs()[i];
      const bool is_on_device = cut_.is_output_on_device[i];
      if (!is_on_device) {
        split_.outputs.push_back({false, HostOutput(tensor)});
        continue;
      }
      split_.outputs.push_back({true, split_.device.outputs.size()});
      split_.device.outputs.push_back(SpecOf(
          signature_.outputs[i].name, TensorName(graph_.node(tensor.node).name(), tensor.output),
          graph_.dtype(tensor), graph_.dims(tensor)));
    }
  }

  void AddIndexFlag() {
    split_.has_index_check = !in_range_.empty();
    if (!split_.has_index_check) return;
    split_.device.outputs.push_back(SpecOf("in_range", TensorName(in_range_, 0),
                                           tensorflow::DT_BOOL,
                                           Dims{tensor::TensorSpec::kUnknownSize}));
  }

  const NumberedGraph& graph_;
  const GraphCut& cut_;
  const FlatSignature& flat_;
  const tensor::Signature& signature_;
  const std::string prefix_;
  std::unordered_map<std::string, std::string> ops_;  // of the model's nodes
  std::map<NodeOutput, std::string> taken_;           // in the device part, by their source
  std::string in_range_;  // the node that says of each row whether its indices are right
  SignatureSplit split_;
};

// Returns UNIMPLEMENTED if a node with an effect may be left out: nothing after it could tell that
// a request was checked.
Status CheckTaken(const NumberedGraph& graph, const std::vector<int>& effects) {
  for (const int effect : effects) {
    if (!graph.MayBeLeftOut(effect)) continue;
    const Node& node = graph.node(effect);
    return {base::Code::kUnimplemented,
            "node '" + node.name() + "' (" + node.type_string() +
                ") may fail requests, and is part of a conditional of TensorFlow 1"};
  }
  return {};
}

// Returns why an output is not computed on the device.
std::string WhyNot(const NumberedGraph& graph, const GraphCut& cut,
                   const tensor::Signature& signature) {
  const std::vector<NodeOutput>& outputs = graph.outputs();
  const std::vector<CutNode>& nodes = graph.cut_nodes();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (cut.is_output_on_device[i]) continue;
    std::deque<int> next = {outputs[i].node};
    std::set<int> seen;
    while (!next.empty()) {
      const int number = next.front();
      next.pop_front();
      if (!seen.insert(number).second || nodes[number].is_input) continue;
      if (!graph.reason(number).empty()) {
        return "output '" + signature.outputs[i].name + "' needs node '" +
               graph.node(number).name() + "' (" + graph.node(number).type_string() + "), which " +
               graph.reason(number);
      }
      for (const NodeOutput& input : nodes[number].inputs) next.push_back(input.node);
    }
    return "output '" + signature.outputs[i].name +
           "' has no rows of a known size, or is made of what has none";
  }
  return "no input has rows";
}

}  // namespace

SignatureSplit::SignatureSplit()
    : device_graph(std::make_unique<tensorflow::MetaGraphDef>()),
      host_graph(std::make_unique<GraphDef>()) {}
SignatureSplit::~SignatureSplit() = default;
SignatureSplit::SignatureSplit(SignatureSplit&&) noexcept = default;
SignatureSplit& SignatureSplit::operator=(SignatureSplit&&) noexcept = default;

StatusOr<SignatureSplit> SplitSignature(const tensorflow::MetaGraphDef& meta_graph,
                                        const tensor::Signature& signature,
                                        const std::string& prefix, const SplitLimits& limits) {
  const StatusOr<FlatSignature> flat = FlatSignature::Make(meta_graph, signature);
  if (!flat.ok()) return flat.status();
  NumberedGraph graph(flat.value(), signature, limits);
  MILLPOND_RETURN_IF_ERROR(graph.Number());
  std::vector<CutNode> nodes = graph.cut_nodes();
  const std::vector<NodeOutput>& outputs = graph.outputs();
  const std::vector<int> effects = graph.Effects();
  MILLPOND_RETURN_IF_ERROR(CheckTaken(graph, effects));
  GraphCut cut = CutGraph(nodes, outputs, effects);
  for (int moved = FindCheaperOnHost(nodes, cut, outputs); moved >= 0;
       moved = FindCheaperOnHost(nodes, cut, outputs)) {
    nodes[moved].fits_device = false;
    cut = CutGraph(nodes, outputs, effects);
  }
  if (!cut.HasDevicePart() || cut.crossing.empty()) {
    return Status(base::Code::kUnimplemented, WhyNot(graph, cut, signature));
  }
  return PartsMaker(graph, cut, flat.value(), signature, prefix).Make(meta_graph);
}

}  // namespace millpond::tf
