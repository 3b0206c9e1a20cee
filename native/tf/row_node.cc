#include "native/tf/row_node.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/public/version.h"

namespace millpond::tf {
namespace {

using tensorflow::DataType;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;
using HandleShapes = std::unique_ptr<std::vector<std::pair<PartialTensorShape, DataType>>>;

int64_t SizeOf(const Quantity& quantity) {
  return quantity.kind == Quantity::Kind::kKnown && quantity.value >= 0 ? quantity.value : -1;
}

PartialTensorShape ShapeOf(const std::vector<Quantity>& sizes) {
  std::vector<int64_t> dims;
  for (const Quantity& size : sizes) dims.push_back(SizeOf(size));
  PartialTensorShape shape;
  const bool is_shape =
      PartialTensorShape::MakePartialShape(dims.data(), static_cast<int>(dims.size()), &shape).ok();
  return is_shape ? shape : PartialTensorShape();
}

template <typename T>
void SetNumbers(const std::vector<int64_t>& numbers, Tensor* tensor) {
  auto flat = tensor->flat<T>();
  for (size_t i = 0; i < numbers.size(); ++i) {
    flat(static_cast<int64_t>(i)) = static_cast<T>(numbers[i]);
  }
}

// Returns the tensor of a value whose integers are known; nullopt for any other value.
std::optional<Tensor> TensorOf(const RowValue& value) {
  const auto numbers = value.Numbers();
  const auto dtype = static_cast<DataType>(value.dtype);
  if (!numbers || !value.has_rank ||
      (dtype != tensorflow::DT_INT32 && dtype != tensorflow::DT_INT64)) {
    return std::nullopt;
  }
  tensorflow::TensorShape shape;
  if (!ShapeOf(value.dims).AsTensorShape(&shape)) return std::nullopt;
  if (shape.num_elements() != static_cast<int64_t>(numbers->size())) return std::nullopt;
  Tensor tensor(dtype, shape);
  if (dtype == tensorflow::DT_INT32) SetNumbers<int32_t>(*numbers, &tensor);
  if (dtype == tensorflow::DT_INT64) SetNumbers<int64_t>(*numbers, &tensor);
  return tensor;
}

// The inputs as a shape function reads them.
struct InferenceInputs {
  explicit InferenceInputs(const std::vector<RowValue>& inputs) {
    tensors.reserve(inputs.size());
    for (const RowValue& input : inputs) {
      shapes.push_back(input.has_rank ? ShapeOf(input.dims) : PartialTensorShape());
      tensors.push_back(TensorOf(input));
      const bool is_vector = input.elements && input.rank() == 1;
      as_shapes.push_back(is_vector ? ShapeOf(*input.elements) : PartialTensorShape());
      handles.push_back(nullptr);
      if (input.content == nullptr || input.is_list || !input.content->has_rank) continue;
      handles.back() = std::make_unique<std::vector<std::pair<PartialTensorShape, DataType>>>();
      handles.back()->emplace_back(ShapeOf(input.content->dims),
                                   static_cast<DataType>(input.content->dtype));
    }
    for (const auto& tensor : tensors) pointers.push_back(tensor ? &*tensor : nullptr);
  }

  std::vector<PartialTensorShape> shapes;
  std::vector<std::optional<Tensor>> tensors;
  std::vector<const Tensor*> pointers;
  std::vector<PartialTensorShape> as_shapes;
  std::vector<HandleShapes> handles;
};

}  // namespace

RowNode::RowNode(const tensorflow::NodeDef& node, const tensorflow::OpDef& op,
                 const std::vector<RowValue>& inputs)
    : node_(node), op_(op), inputs_(inputs) {
  tensorflow::DataTypeVector dtypes;
  if (tensorflow::OutputTypesForNode(node_, op_, &dtypes).ok()) {
    output_dtypes_.assign(dtypes.begin(), dtypes.end());
  }
  output_dims_.resize(output_dtypes_.size());
  InferShapes();
}

void RowNode::InferShapes() {
  const tensorflow::OpRegistrationData* registered = nullptr;
  const bool is_known = tensorflow::OpRegistry::Global()->LookUp(node_.op(), &registered).ok();
  if (!is_known || registered->shape_inference_fn == nullptr) return;
  const InferenceInputs inputs(inputs_);
  InferenceContext inference(TF_GRAPH_DEF_VERSION, tensorflow::AttrSlice(node_), op_, inputs.shapes,
                             inputs.pointers, inputs.as_shapes, inputs.handles);
  if (!inference.construction_status().ok()) return;
  if (!inference.Run(registered->shape_inference_fn).ok()) return;
  const int count = std::min(inference.num_outputs(), static_cast<int>(output_dims_.size()));
  for (int i = 0; i < count; ++i) {
    const auto shape = inference.output(i);
    if (!inference.RankKnown(shape)) continue;
    std::vector<int64_t> dims;
    for (int axis = 0; axis < inference.Rank(shape); ++axis) {
      dims.push_back(inference.Value(inference.Dim(shape, axis)));
    }
    output_dims_[static_cast<size_t>(i)] = std::move(dims);
  }
}

const std::string& RowNode::op() const { return node_.op(); }
bool RowNode::is_stateful() const { return op_.is_stateful(); }

const tensorflow::AttrValue* RowNode::Find(const char* name) const {
  const auto found = node_.attr().find(name);
  return found == node_.attr().end() ? nullptr : &found->second;
}
int64_t RowNode::Integer(const char* name) const {
  const auto* const value = Find(name);
  return value == nullptr ? 0 : value->i();
}
bool RowNode::Flag(const char* name) const {
  const auto* const value = Find(name);
  return value != nullptr && value->b();
}
std::string RowNode::Text(const char* name) const {
  const auto* const value = Find(name);
  return value == nullptr ? std::string() : value->s();
}
std::vector<int64_t> RowNode::Integers(const char* name) const {
  const auto* const value = Find(name);
  if (value == nullptr) return {};
  return {value->list().i().begin(), value->list().i().end()};
}

std::pair<int, int> RowNode::OutputsOf(const char* name) const {
  tensorflow::NameRangeMap ranges;
  if (!tensorflow::NameRangesForNode(tensorflow::AttrSlice(node_), op_, nullptr, &ranges).ok()) {
    return {0, 0};
  }
  auto range = ranges.find(name);  // const, because a FlatMap's iterator then reads nothing
  if (range == ranges.end()) return {0, 0};
  return {range->second.first, range->second.second - range->second.first};
}

RowValue RowNode::Rows(int axis, int64_t factor, int output) const {
  RowValue value = Free(output);
  if (value.has_rank && axis >= value.rank()) return Unknown("its shape has no rows");
  // An output may have no rows at all, as Svd without vectors. The shape function does not show
  // that, because it does not know the number of rows.
  const bool is_sized =
      value.has_rank && value.dims[static_cast<size_t>(axis)].kind == Quantity::Kind::kKnown;
  if (is_sized) return Unknown("has a fixed size in the place of the rows");
  value.kind = RowValue::Kind::kRows;
  value.axis = axis;
  value.factor = factor;
  for (int i = 0; i < value.rank(); ++i) {
    Quantity& dim = value.dims[static_cast<size_t>(i)];
    if (i == axis) {
      dim = factor >= 0 ? Quantity::Rows(factor) : Quantity::Any();
    } else if (dim.DependsOnRows()) {
      dim = Quantity();  // a shape function cannot distinguish two unknown sizes
    }
  }
  return value;
}

RowValue RowNode::Free(int output) const {
  RowValue value;
  for (const RowValue& input : inputs_) {
    if (input.Has(RowValue::Kind::kCount)) value.kind = RowValue::Kind::kCount;
  }
  const auto index = static_cast<size_t>(output);
  if (index >= output_dtypes_.size()) return value;
  value.dtype = output_dtypes_[index];
  value.has_rank = output_dims_[index].has_value();
  if (!value.has_rank) return value;
  for (const int64_t size : *output_dims_[index]) {
    const Quantity unknown = value.Has(RowValue::Kind::kCount) ? Quantity::Any() : Quantity();
    value.dims.push_back(size >= 0 ? Quantity::Known(size) : unknown);
  }
  return value;
}

RowValue RowNode::Of(RowValue::Kind kind, std::string reason) const {
  return RowValue::Of(kind, Cause(std::move(reason)));
}

RowCause RowNode::Cause(std::string reason) const {
  return {node_.name(), node_.op(), std::move(reason)};
}

}  // namespace millpond::tf
