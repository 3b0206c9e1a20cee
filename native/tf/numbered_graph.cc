#include "native/tf/numbered_graph.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "native/tf/buffer_type.h"
#include "native/tf/failing_ops.h"
#include "native/tf/handle_search.h"
#include "native/tf/row_analysis.h"
#include "native/tf/xla_capability.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/algorithm.h"

namespace millpond::tf {
namespace {

using base::Status;
using tensorflow::DataType;
using tensorflow::Node;
using tensorflow::NodeDef;
using Dims = std::vector<int64_t>;

// The most nodes between an index and what bounds it.
constexpr int kRangeDepthMax = 16;

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

}  // namespace

Status NumberedGraph::Number() {
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

NodeOutput NumberedGraph::OutputOf(const std::string& input) const {
  const size_t colon = input.find(':');
  const int output = colon == std::string::npos ? 0 : std::stoi(input.substr(colon + 1));
  return {NumberOf(NodeOf(input)), output};
}

bool NumberedGraph::IsCarrier(int number) const {
  const std::string& op = nodes_[number]->type_string();
  return op == "Identity" || op == "ReadVariableOp";
}

ResourceKey NumberedGraph::VariableOf(int handle) const {
  ResourceKey key;
  GetNodeAttr(nodes_[handle]->attrs(), "container", &key.container).IgnoreError();
  GetNodeAttr(nodes_[handle]->attrs(), "shared_name", &key.name).IgnoreError();
  return key;
}

std::vector<int> NumberedGraph::Effects() const {
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

NodeOutput NumberedGraph::BehindIdentities(const Node* node) const {
  NodeOutput tensor{numbers_.at(node), 0};
  while (nodes_[tensor.node]->IsIdentity() && nodes_[tensor.node]->num_inputs() == 1) {
    const tensorflow::Edge* edge = nullptr;
    if (!nodes_[tensor.node]->input_edge(0, &edge).ok()) break;
    tensor = {numbers_.at(edge->src()), edge->src_output()};
  }
  return tensor;
}

void NumberedGraph::Analyze() {
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
  tensorflow::SignatureDef inputs = InputsOf(signature_);
  for (const Node* const node : nodes_) AddModuleOutputs(*node, &inputs);
  std::vector<RowValue> values = AnalyzeTensors(meta_graph, inputs, tensors);
  size_t next = 0;
  for (const Node* const node : nodes_) {
    std::vector<RowValue>& of_node = values_.emplace_back();
    for (int i = 0; i < node->num_outputs(); ++i) of_node.push_back(std::move(values[next++]));
  }
}

void NumberedGraph::AddModuleOutputs(const Node& node, tensorflow::SignatureDef* inputs) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  if (!IsModule(node) || !GetNodeAttr(node.attrs(), "Sout", &shapes).ok()) return;
  for (int i = 0; i < node.num_outputs() && i < static_cast<int>(shapes.size()); ++i) {
    if (shapes[i].dims() < 1 || shapes[i].dim_size(0) >= 0) continue;
    const std::string name = TensorName(node.name(), i);
    tensorflow::TensorInfo& info = (*inputs->mutable_inputs())[name];
    info.set_name(name);
    info.set_dtype(node.output_type(i));
    shapes[i].AsProto(info.mutable_tensor_shape());
  }
}

void NumberedGraph::Describe() {
  const XlaCapability capability(*flat_.functions);
  index_checks_.resize(nodes_.size());
  conditional_depths_.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    int& depth = conditional_depths_[i];
    for (const tensorflow::Edge* const edge : node.in_edges()) {
      const auto source = numbers_.find(edge->src());
      if (source == numbers_.end() || source->second >= static_cast<int>(i)) continue;
      depth = std::max(depth, conditional_depths_[source->second]);
    }
    if (IsSwitch(node.type_string())) ++depth;
    if (IsMerge(node.type_string())) depth = std::max(0, depth - 1);
    const bool may_be_left_out = MayBeLeftOut(static_cast<int>(i));
    reasons_.push_back(may_be_left_out ? "is part of a conditional of TensorFlow 1"
                                       : WhyNotOnDevice(node, capability));
    DescribeNode(static_cast<int>(i), may_be_left_out);
  }
  for (size_t i = 0; i < flat_.outputs.size(); ++i) {
    const NodeOutput output = outputs_[i];
    std::optional<Dims>& dims = dims_[output.node][output.output];
    if (dims) continue;
    dims = DeclaredDims(value(output), signature_.outputs[i]);
    if (dims) SetRows(output);
  }
}

void NumberedGraph::DescribeNode(int number, bool may_be_left_out) {
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

void NumberedGraph::SetRows(const NodeOutput& tensor) {
  if (!IsTranslatable(dtype(tensor))) return;
  CutNode::Output& output = cut_nodes_[tensor.node].outputs[tensor.output];
  output.crossing = CutNode::Crossing::kAsRows;
  output.row_bytes = tensorflow::DataTypeSize(dtype(tensor));
  const Dims& dims = *this->dims(tensor);
  for (size_t i = 1; i < dims.size(); ++i) output.row_bytes *= dims[i];
}

std::string NumberedGraph::WhyNotOnDevice(const Node& node, const XlaCapability& capability) {
  const auto barred = limits_.barred.find(node.name());
  if (barred != limits_.barred.end()) return barred->second;
  std::string reason = capability.WhyNot(node);
  if (!reason.empty()) return reason;
  for (const RowValue& value : values_[numbers_.at(&node)]) {
    if (value.cause == nullptr) continue;
    return "has rows that are not known to be independent: node '" + value.cause->node + "' (" +
           value.cause->op + ") " + value.cause->reason;
  }
  const int number = numbers_.at(&node);
  if (ChecksSecondOperand(node.def())) return WhyNotSecondOperand(number);
  if (Shifts(node.type_string())) return WhyNotShift(number);
  if (!LooksUp(node.type_string())) return "";
  const std::optional<int> table = HandleBehind(InputOf(number, 0));
  if (table && limits_.host_tables.count(VariableOf(*table)) > 0) {
    return "looks up in a table that stays in the server's memory";
  }
  return CheckIndices(number);
}

std::string NumberedGraph::WhyNotSecondOperand(int number) {
  const IntegerRange second = Range(InputOf(number, 1), kRangeDepthMax);
  const bool is_exponent = nodes_[number]->type_string() == "Pow";
  const bool is_right = second.least > 0 || (is_exponent ? second.least == 0 : second.largest < 0);
  return is_right ? "" : "may fail requests by a second operand, and XLA does not";
}

std::string NumberedGraph::WhyNotShift(int number) {
  const NodeOutput bits = InputOf(number, 1);
  const int64_t bit_count = int64_t{8} * tensorflow::DataTypeSize(dtype(bits));
  const bool is_right = Range(bits, kRangeDepthMax).IsWithin(0, bit_count - 1);
  return is_right ? "" : "may shift by more bits than there are, which XLA does in another way";
}

std::optional<int> NumberedGraph::HandleBehind(NodeOutput tensor) const {
  while (IsCarrier(tensor.node)) tensor = InputOf(tensor.node, 0);
  const bool is_handle = nodes_[tensor.node]->type_string() == kHandleOp;
  return is_handle ? std::optional(tensor.node) : std::nullopt;
}

std::string NumberedGraph::CheckIndices(int number) {
  constexpr char kUnchecked[] = "may fail requests by an index, and XLA does not";
  const NodeOutput indices = InputOf(number, 1);
  const Dims sizes = IndexedSizes(number);
  if (sizes.empty()) return kUnchecked;
  const IntegerRange range = Range(indices, kRangeDepthMax);
  if (range.IsWithin(0, *std::min_element(sizes.begin(), sizes.end()) - 1)) return "";
  if (!RowDims(value(indices))) return kUnchecked;
  index_checks_[number] = IndexCheck{indices, sizes};
  return "";
}

Dims NumberedGraph::IndexedSizes(int number) const {
  const Node& node = *nodes_[number];
  const std::string& op = node.type_string();
  const RowValue& first_input = InputValue(number, 0);
  const bool is_variable = op == "ResourceGather" || op == "ResourceGatherNd";
  if (is_variable && first_input.content == nullptr) return {};
  const RowValue& table = is_variable ? *first_input.content : first_input;
  int64_t first = 0;
  int64_t count = 1;
  if (op == "ResourceGather") {
    first = BatchDims(node);
  } else if (op == "GatherV2") {
    const auto axis = InputValue(number, 2).Numbers();
    if (!axis || axis->size() != 1) return {};
    first = axis->front() < 0 ? axis->front() + table.rank() : axis->front();
  } else if (op != "Gather") {
    const RowValue& indices = InputValue(number, 1);
    const bool is_sized = indices.has_rank && !indices.dims.empty() &&
                          indices.dims.back().kind == Quantity::Kind::kKnown;
    if (!is_sized || BatchDims(node) != 0) return {};
    count = indices.dims.back().value;
  }
  return SizesOf(table, first, count);
}

Dims NumberedGraph::SizesOf(const RowValue& table, int64_t first, int64_t count) {
  if (!table.has_rank || first < 0 || first + count > table.rank()) return {};
  Dims sizes;
  for (int64_t i = first; i < first + count; ++i) {
    if (table.dims[i].kind != Quantity::Kind::kKnown) return {};
    sizes.push_back(table.dims[i].value);
  }
  return sizes;
}

int64_t NumberedGraph::BatchDims(const Node& node) {
  int64_t batch_dims = 0;
  return GetNodeAttr(node.attrs(), "batch_dims", &batch_dims).ok() ? batch_dims : 0;
}

NodeOutput NumberedGraph::InputOf(int number, int input) const {
  const tensorflow::Edge* edge = nullptr;
  nodes_[number]->input_edge(input, &edge).IgnoreError();
  return {numbers_.at(edge->src()), edge->src_output()};
}

IntegerRange NumberedGraph::Range(const NodeOutput& tensor, int depth) {
  const IntegerRange known = RangeOf(value(tensor));
  if (known.IsBounded() || depth == 0 || tensor.output != 0) return known;
  const auto asked = ranges_.find({tensor, depth});
  if (asked != ranges_.end()) return asked->second;
  const IntegerRange range = RangeOf(
      *nodes_[tensor.node],
      [&](int input) { return Range(InputOf(tensor.node, input), depth - 1); },
      [&](int input) -> const RowValue& { return InputValue(tensor.node, input); });
  ranges_.emplace(std::pair(tensor, depth), range);
  return range;
}

}  // namespace millpond::tf
