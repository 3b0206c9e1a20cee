#include "native/tf/signature_split.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "native/tf/buffer_type.h"
#include "native/tf/flat_signature.h"
#include "native/tf/graph_cut.h"
#include "native/tf/graph_names.h"
#include "native/tf/handle_search.h"
#include "native/tf/row_analysis.h"
#include "native/tf/xla_capability.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/algorithm.h"
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

std::string TensorName(const std::string& node, int output) {
  return node + ":" + std::to_string(output);
}

bool IsTranslatable(int dtype) { return BufferType(dtype) != PJRT_Buffer_Type_INVALID; }

// Returns the dimensions of a tensor whose first is the rows, and whose others are known.
std::optional<Dims> RowDims(const RowValue& value) {
  if (!value.IsRows() || value.is_list || value.axis != 0 || value.factor != 1 || !value.has_rank) {
    return {};
  }
  Dims dims = {tensor::TensorSpec::kUnknownSize};
  for (size_t i = 1; i < value.dims.size(); ++i) {
    if (value.dims[i].kind != Quantity::Kind::kKnown) return {};
    dims.push_back(value.dims[i].value);
  }
  return dims;
}

// Returns the dimensions that a signature declares for an output, if the analysis lacks them.
std::optional<Dims> DeclaredDims(const RowValue& value, const tensor::TensorSpec& output) {
  const bool is_of_rows = value.IsRows() && !value.is_list && value.axis == 0 && value.factor == 1;
  if (!is_of_rows || !output.is_rank_known || output.dims.empty()) return {};
  Dims dims = output.dims;
  dims[0] = tensor::TensorSpec::kUnknownSize;
  const bool has_open = std::any_of(dims.begin() + 1, dims.end(), [](int64_t size) {
    return size == tensor::TensorSpec::kUnknownSize;
  });
  return has_open ? std::nullopt : std::optional(dims);
}

// Returns true if the number of rows alone tells the elements of a tensor of integers.
bool IsCount(const RowValue& value, DataType dtype) {
  const auto is_known = [](const Quantity& each) {
    return each.kind == Quantity::Kind::kKnown ||
           (each.kind == Quantity::Kind::kRows && each.value > 0);
  };
  const auto is_number = [](const Quantity& each) { return each.kind == Quantity::Kind::kKnown; };
  return (dtype == tensorflow::DT_INT32 || dtype == tensorflow::DT_INT64) && value.IsFree() &&
         value.has_rank && std::all_of(value.dims.begin(), value.dims.end(), is_number) &&
         value.elements && std::all_of(value.elements->begin(), value.elements->end(), is_known);
}

// Returns false for ops that say little about why a part stays on the host.
bool IsTelling(const std::string& op) {
  return op != "Const" && op != "Identity" && op != "Shape" && op.rfind("HashTable", 0) != 0;
}

// Ops that copy integers or add them: they cost the host about as much as a copy.
bool IsCheap(const Node& node) {
  static const auto* const kOps = new std::unordered_set<std::string>{
      "Add",      "AddV2",      "BitwiseAnd", "BitwiseOr", "BitwiseXor",   "Cast",
      "ConcatV2", "ExpandDims", "Identity",   "Maximum",   "Minimum",      "Mul",
      "Pack",     "Reshape",    "Slice",      "Squeeze",   "StridedSlice", "Sub"};
  const auto is_integer = [](DataType dtype) {
    return tensorflow::DataTypeIsInteger(dtype) || dtype == tensorflow::DT_BOOL;
  };
  return kOps->count(node.type_string()) > 0 &&
         std::all_of(node.input_types().begin(), node.input_types().end(), is_integer) &&
         std::all_of(node.output_types().begin(), node.output_types().end(), is_integer);
}

bool IsSwitch(const std::string& op) {
  return op == "Switch" || op == "RefSwitch" || op == "_SwitchN";
}
bool IsMerge(const std::string& op) { return op == "Merge" || op == "RefMerge"; }

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

tensorflow::SignatureDef InputsOf(const tensor::Signature& signature) {
  tensorflow::SignatureDef definition;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const tensor::TensorSpec& input = signature.inputs[i];
    tensorflow::TensorInfo& info = (*definition.mutable_inputs())[input.name];
    info.set_name(TensorName("millpond_input_" + std::to_string(i), 0));
    info.set_dtype(static_cast<DataType>(input.dtype));
    info.mutable_tensor_shape()->set_unknown_rank(!input.is_rank_known);
    for (const int64_t size : input.dims) info.mutable_tensor_shape()->add_dim()->set_size(size);
  }
  return definition;
}

// A flat signature as a cut needs it: its nodes by number, each after its inputs.
class NumberedGraph {
 public:
  NumberedGraph(const FlatSignature& flat, const tensor::Signature& signature,
                const HostNodes& barred)
      : flat_(flat), signature_(signature), barred_(barred) {}

  Status Number() {
    FixupSourceAndSinkEdges(flat_.graph.get());
    std::vector<Node*> order;
    GetReversePostOrder(*flat_.graph, &order, tensorflow::NodeComparatorName());
    for (Node* const node : order) {
      if (!node->IsOp()) continue;
      numbers_[node] = static_cast<int>(nodes_.size());
      nodes_.push_back(node);
    }
    for (const Node* const node : nodes_) {
      for (const tensorflow::Edge* const edge : node->in_edges()) {
        if (edge->IsControlEdge() || numbers_.at(edge->src()) < numbers_.at(node)) continue;
        return {base::Code::kUnimplemented,
                "node '" + node->name() + "' is part of a loop of TensorFlow 1"};
      }
    }
    for (const Node* const node : flat_.outputs) outputs_.push_back(BehindIdentities(node));
    Analyze();
    Describe();
    return {};
  }

  const Node& node(int number) const { return *nodes_[number]; }
  int NumberOf(const Node* node) const { return numbers_.at(node); }
  int NumberOf(std::string_view name) const { return by_name_.at(std::string(name)); }
  NodeOutput OutputOf(const std::string& input) const {
    const size_t colon = input.find(':');
    const int output = colon == std::string::npos ? 0 : std::stoi(input.substr(colon + 1));
    return {NumberOf(NodeOf(input)), output};
  }
  const NodeDef& definition(int number) const { return definitions_[number]; }
  size_t size() const { return nodes_.size(); }
  const std::string& reason(int number) const { return reasons_[number]; }
  DataType dtype(const NodeOutput& tensor) const {
    return nodes_[tensor.node]->output_type(tensor.output);
  }
  const std::optional<Dims>& dims(const NodeOutput& tensor) const {
    return dims_[tensor.node][tensor.output];
  }
  const RowValue& value(const NodeOutput& tensor) const {
    return values_[tensor.node][tensor.output];
  }

  std::vector<CutNode> CutNodes() const { return cut_nodes_; }
  const std::vector<NodeOutput>& outputs() const { return outputs_; }
  // Nodes that may fail a request although nothing reads them.
  std::vector<int> Effects() const {
    std::vector<int> effects;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const bool makes_handle =
          nodes_[i]->num_outputs() > 0 && nodes_[i]->output_type(0) == tensorflow::DT_RESOURCE;
      if (!reasons_[i].empty() && nodes_[i]->op_def().is_stateful() && !makes_handle) {
        effects.push_back(static_cast<int>(i));
      }
    }
    return effects;
  }

 private:
  // Returns what a node hands on, so that nothing travels only to be handed on.
  NodeOutput BehindIdentities(const Node* node) const {
    NodeOutput tensor{numbers_.at(node), 0};
    while (nodes_[tensor.node]->IsIdentity() && nodes_[tensor.node]->num_inputs() == 1) {
      const tensorflow::Edge* edge = nullptr;
      if (!nodes_[tensor.node]->input_edge(0, &edge).ok()) break;
      tensor = {numbers_.at(edge->src()), edge->src_output()};
    }
    return tensor;
  }

  void Analyze() {
    tensorflow::MetaGraphDef meta_graph;
    flat_.graph->ToGraphDef(meta_graph.mutable_graph_def());
    for (size_t i = 0; i < nodes_.size(); ++i) by_name_[nodes_[i]->name()] = static_cast<int>(i);
    definitions_.resize(nodes_.size());
    for (const NodeDef& node : meta_graph.graph_def().node()) {
      definitions_[NumberOf(node.name())] = node;
    }
    std::vector<std::string> tensors;
    for (const Node* const node : nodes_) {
      for (int i = 0; i < node->num_outputs(); ++i) tensors.push_back(TensorName(node->name(), i));
    }
    std::vector<RowValue> values = AnalyzeTensors(meta_graph, InputsOf(signature_), tensors);
    size_t next = 0;
    for (const Node* const node : nodes_) {
      std::vector<RowValue>& of_node = values_.emplace_back();
      for (int i = 0; i < node->num_outputs(); ++i) of_node.push_back(std::move(values[next++]));
    }
  }

  void Describe() {
    const XlaCapability capability(*flat_.functions);
    std::vector<bool> may_be_left_out(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = *nodes_[i];
      for (const tensorflow::Edge* const edge : node.in_edges()) {
        const auto source = numbers_.find(edge->src());
        if (source == numbers_.end() || source->second >= static_cast<int>(i)) continue;
        may_be_left_out[i] = may_be_left_out[i] || may_be_left_out[source->second];
      }
      if (IsSwitch(node.type_string())) may_be_left_out[i] = true;
      if (IsMerge(node.type_string())) may_be_left_out[i] = false;
      reasons_.push_back(may_be_left_out[i] ? "is part of a conditional of TensorFlow 1"
                                            : WhyNotOnDevice(node, capability));
      DescribeNode(static_cast<int>(i), may_be_left_out[i]);
    }
    for (size_t i = 0; i < flat_.outputs.size(); ++i) {
      const NodeOutput output = outputs_[i];
      std::optional<Dims>& dims = dims_[output.node][output.output];
      if (dims) continue;
      dims = DeclaredDims(value(output), signature_.outputs[i]);
      if (dims) SetRows(output);
    }
  }

  void DescribeNode(int number, bool may_be_left_out) {
    const Node& node = *nodes_[number];
    CutNode& described = cut_nodes_.emplace_back();
    described.fits_device = reasons_[number].empty();
    described.is_input =
        std::find(flat_.inputs.begin(), flat_.inputs.end(), &node) != flat_.inputs.end();
    described.is_cheap = IsCheap(node);
    described.outputs.resize(node.num_outputs());
    described.inputs.resize(node.num_inputs());
    described.is_fixed = described.fits_device && !described.is_input;
    for (const tensorflow::Edge* const edge : node.in_edges()) {
      if (edge->IsControlEdge()) continue;
      described.inputs[edge->dst_input()] = {numbers_.at(edge->src()), edge->src_output()};
      described.is_fixed = described.is_fixed && cut_nodes_[numbers_.at(edge->src())].is_fixed;
    }
    std::vector<std::optional<Dims>>& dims = dims_.emplace_back(node.num_outputs());
    for (int i = 0; i < node.num_outputs(); ++i) {
      const NodeOutput output{number, i};
      described.is_fixed = described.is_fixed && value(output).Has(RowValue::Kind::kFixed);
      if (may_be_left_out) continue;
      dims[i] = RowDims(value(output));
      if (dims[i]) SetRows(output);
      if (IsCount(value(output), dtype(output))) {
        described.outputs[i].crossing = CutNode::Crossing::kAsCount;
      }
    }
  }

  void SetRows(const NodeOutput& tensor) {
    if (!IsTranslatable(dtype(tensor))) return;
    CutNode::Output& output = cut_nodes_[tensor.node].outputs[tensor.output];
    output.crossing = CutNode::Crossing::kAsRows;
    output.row_bytes = tensorflow::DataTypeSize(dtype(tensor));
    const Dims& dims = *this->dims(tensor);
    for (size_t i = 1; i < dims.size(); ++i) output.row_bytes *= dims[i];
  }

  // Returns why a node must stay on the host, "" if it need not.
  std::string WhyNotOnDevice(const Node& node, const XlaCapability& capability) const {
    const auto barred = barred_.find(node.name());
    if (barred != barred_.end()) return barred->second;
    std::string reason = capability.WhyNot(node);
    if (!reason.empty()) return reason;
    for (const RowValue& value : values_[numbers_.at(&node)]) {
      if (value.cause == nullptr) continue;
      return "has rows that are not known to be independent: node '" + value.cause->node + "' (" +
             value.cause->op + ") " + value.cause->reason;
    }
    return "";
  }

  const FlatSignature& flat_;
  const tensor::Signature& signature_;
  const HostNodes& barred_;
  std::vector<Node*> nodes_;
  std::unordered_map<const Node*, int> numbers_;
  std::unordered_map<std::string, int> by_name_;
  std::vector<NodeOutput> outputs_;
  std::vector<NodeDef> definitions_;
  std::vector<std::vector<RowValue>> values_;
  std::vector<std::vector<std::optional<Dims>>> dims_;  // of tensors of rows
  std::vector<std::string> reasons_;
  std::vector<CutNode> cut_nodes_;
};

// --- The parts as graphs ---

NodeDef* AddNode(const std::string& name, const char* op, DataType dtype, GraphDef* graph) {
  NodeDef* const node = graph->add_node();
  node->set_name(name);
  node->set_op(op);
  (*node->mutable_attr())["T"].set_type(dtype);
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
    if (dtype == tensorflow::DT_INT32) {
      value.add_int_val(static_cast<int32_t>(integer));
    } else {
      value.add_int64_val(integer);
    }
  }
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
  NodeDef* const scaled = AddNode(name + "/scaled", "Mul", dtype, graph);
  scaled->add_input(name + "/factors");
  scaled->add_input(name + "/rows");
  NodeDef* const sum = AddNode(name, "AddV2", dtype, graph);
  sum->add_input(name + "/fixed");
  sum->add_input(name + "/scaled");
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
    return std::move(split_);
  }

 private:
  static std::string CrossingName(size_t index) {
    return "millpond_crossing_" + std::to_string(index);
  }
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
      if (cut_.is_on_device[i]) AddDeviceNode(static_cast<int>(i), &device);
    }
  }

  void AddDeviceNode(int number, GraphDef* device) {
    NodeDef node = Unplaced(graph_.definition(number));
    node.clear_input();
    for (const std::string& input : graph_.definition(number).input()) {
      if (IsControl(input)) {
        if (cut_.is_on_device[graph_.NumberOf(NodeOf(input))]) node.add_input(input);
        continue;
      }
      const auto taken = taken_.find(graph_.OutputOf(input));
      node.add_input(taken == taken_.end() ? input : taken->second);
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

  const NumberedGraph& graph_;
  const GraphCut& cut_;
  const FlatSignature& flat_;
  const tensor::Signature& signature_;
  const std::string prefix_;
  std::unordered_map<std::string, std::string> ops_;  // of the model's nodes
  std::map<NodeOutput, std::string> taken_;           // in the device part, by their source
  SignatureSplit split_;
};

// Returns why an output is not computed on the device.
std::string WhyNot(const NumberedGraph& graph, const GraphCut& cut,
                   const tensor::Signature& signature) {
  const std::vector<NodeOutput>& outputs = graph.outputs();
  const std::vector<CutNode> nodes = graph.CutNodes();
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
                                        const std::string& prefix, const HostNodes& barred) {
  const StatusOr<FlatSignature> flat = FlatSignature::Make(meta_graph, signature);
  if (!flat.ok()) return flat.status();
  NumberedGraph graph(flat.value(), signature, barred);
  MILLPOND_RETURN_IF_ERROR(graph.Number());
  std::vector<CutNode> nodes = graph.CutNodes();
  const std::vector<NodeOutput>& outputs = graph.outputs();
  const std::vector<int> effects = graph.Effects();
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
