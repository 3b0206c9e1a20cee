#include "native/tf/integer_range.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/graph.h"

namespace millpond::tf {
namespace {

using Inputs = std::function<IntegerRange(int)>;
using Values = std::function<const RowValue&(int)>;

IntegerRange Union(const IntegerRange& a, const IntegerRange& b) {
  return {std::min(a.least, b.least), std::max(a.largest, b.largest)};
}

// Returns the range of the sums, or all integers if one of them overflows.
IntegerRange Sum(const IntegerRange& a, const IntegerRange& b) {
  IntegerRange sum;
  if (__builtin_add_overflow(a.least, b.least, &sum.least) ||
      __builtin_add_overflow(a.largest, b.largest, &sum.largest)) {
    return {};
  }
  return sum;
}

// Returns the range of numbers from 0 to `count` - 1.
IntegerRange Below(int64_t count) {
  return count > 0 ? IntegerRange{0, count - 1} : IntegerRange();
}

bool HandsThrough(const std::string& op) {
  static const auto* const kOps = new std::unordered_set<std::string>{
      "ExpandDims",   "Identity",     "Reshape", "Slice",    "Squeeze",
      "StopGradient", "StridedSlice", "Tile",    "Transpose"};
  return kOps->count(op) > 0;
}

bool FitsInt32(const IntegerRange& range) {
  return range.IsWithin(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
}

template <typename T>
IntegerRange RangeOfElements(const tensorflow::Tensor& tensor) {
  const auto elements = tensor.flat<T>();
  if (elements.size() == 0) return {};
  const auto [least, largest] =
      std::minmax_element(elements.data(), elements.data() + elements.size());
  return {static_cast<int64_t>(*least), static_cast<int64_t>(*largest)};
}

IntegerRange RangeOfConstant(const tensorflow::Node& node) {
  tensorflow::Tensor tensor;
  if (!GetNodeAttr(node.attrs(), "value", &tensor).ok()) return {};
  switch (tensor.dtype()) {
    case tensorflow::DT_INT8:
      return RangeOfElements<int8_t>(tensor);
    case tensorflow::DT_UINT8:
      return RangeOfElements<uint8_t>(tensor);
    case tensorflow::DT_INT16:
      return RangeOfElements<int16_t>(tensor);
    case tensorflow::DT_UINT16:
      return RangeOfElements<uint16_t>(tensor);
    case tensorflow::DT_INT32:
      return RangeOfElements<int32_t>(tensor);
    case tensorflow::DT_UINT32:
      return RangeOfElements<uint32_t>(tensor);
    case tensorflow::DT_INT64:
      return RangeOfElements<int64_t>(tensor);
    default:
      return {};
  }
}

// Returns the integers of a type; all integers for a type that int64 does not hold.
IntegerRange IntegersOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_INT8:
      return {std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max()};
    case tensorflow::DT_UINT8:
      return {0, std::numeric_limits<uint8_t>::max()};
    case tensorflow::DT_INT16:
      return {std::numeric_limits<int16_t>::min(), std::numeric_limits<int16_t>::max()};
    case tensorflow::DT_UINT16:
      return {0, std::numeric_limits<uint16_t>::max()};
    case tensorflow::DT_INT32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case tensorflow::DT_UINT32:
      return {0, std::numeric_limits<uint32_t>::max()};
    default:
      return {};
  }
}

IntegerRange RangeOfCast(const tensorflow::Node& node, const Inputs& input) {
  const tensorflow::DataType to = node.output_type(0);
  if (node.input_type(0) == tensorflow::DT_BOOL) return {0, 1};
  if (!tensorflow::DataTypeIsInteger(node.input_type(0))) return {};
  const IntegerRange range = input(0);
  return to == tensorflow::DT_INT64 || FitsInt32(range) ? range : IntegerRange();
}

IntegerRange RangeOfAll(int first, int count, const Inputs& input) {
  IntegerRange range = input(first);
  for (int i = first + 1; i < first + count; ++i) range = Union(range, input(i));
  return range;
}

// The place of the largest element along an axis.
IntegerRange RangeOfPlace(const Values& value) {
  const RowValue& from = value(0);
  const auto axis = value(1).Numbers();
  if (!from.has_rank || !axis || axis->size() != 1) return {};
  const int64_t at = axis->front() < 0 ? axis->front() + from.rank() : axis->front();
  if (at < 0 || at >= from.rank() || from.dims[at].kind != Quantity::Kind::kKnown) return {};
  return Below(from.dims[at].value);
}

// The range of an op of two numbers.
IntegerRange RangeOfPair(const std::string& op, const IntegerRange& a, const IntegerRange& b) {
  if (op == "Minimum") return {std::min(a.least, b.least), std::min(a.largest, b.largest)};
  if (op == "Maximum") return {std::max(a.least, b.least), std::max(a.largest, b.largest)};
  if (op == "Add" || op == "AddV2") return Sum(a, b);
  if (op == "FloorMod" && b.least > 0) return Below(b.largest);
  return {};
}

// The range as numbers without an end have it.
IntegerRange UnboundedRangeOf(const tensorflow::Node& node, const Inputs& input,
                              const Values& value) {
  const std::string& op = node.type_string();
  int64_t buckets = 0;
  if (op.rfind("StringToHashBucket", 0) == 0 &&
      GetNodeAttr(node.attrs(), "num_buckets", &buckets).ok()) {
    return Below(buckets);
  }
  if (op == "Const") return RangeOfConstant(node);
  if (HandsThrough(op)) return input(0);
  if (op == "Cast") return RangeOfCast(node, input);
  if (op == "Pack") return RangeOfAll(0, node.num_inputs(), input);
  if (op == "ConcatV2") return RangeOfAll(0, node.num_inputs() - 1, input);
  if (op == "SelectV2") return RangeOfAll(1, 2, input);
  if (op == "ArgMax" || op == "ArgMin") return RangeOfPlace(value);
  if (op == "ClipByValue") {
    return RangeOfPair("Minimum", RangeOfPair("Maximum", input(0), input(1)), input(2));
  }
  return node.num_inputs() == 2 ? RangeOfPair(op, input(0), input(1)) : IntegerRange();
}

}  // namespace

IntegerRange RangeOf(const RowValue& value) {
  const auto numbers = value.Numbers();
  if (!numbers || numbers->empty()) return {};
  const auto [least, largest] = std::minmax_element(numbers->begin(), numbers->end());
  return {*least, *largest};
}

IntegerRange RangeOf(const tensorflow::Node& node, const Inputs& input, const Values& value) {
  const IntegerRange range = UnboundedRangeOf(node, input, value);
  if (node.output_type(0) == tensorflow::DT_INT64) return range;
  const IntegerRange all = IntegersOf(node.output_type(0));
  const bool is_exact = all.IsBounded() && range.IsWithin(all.least, all.largest);
  return is_exact ? range : IntegerRange();  // sums of smaller integers begin anew at their end
}

}  // namespace millpond::tf
