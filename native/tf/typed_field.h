#pragma once

#include <cstdint>

#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {

// The field numbers of tensorflow/core/framework/tensor.proto and tensor_shape.proto.
namespace field {
inline constexpr uint32_t kDtype = 1;
inline constexpr uint32_t kTensorShape = 2;
inline constexpr uint32_t kTensorContent = 4;
inline constexpr uint32_t kFloatVal = 5;
inline constexpr uint32_t kDoubleVal = 6;
inline constexpr uint32_t kIntVal = 7;
inline constexpr uint32_t kStringVal = 8;
inline constexpr uint32_t kScomplexVal = 9;
inline constexpr uint32_t kInt64Val = 10;
inline constexpr uint32_t kBoolVal = 11;
inline constexpr uint32_t kDcomplexVal = 12;
inline constexpr uint32_t kHalfVal = 13;
inline constexpr uint32_t kResourceHandleVal = 14;
inline constexpr uint32_t kVariantVal = 15;
inline constexpr uint32_t kUint32Val = 16;
inline constexpr uint32_t kUint64Val = 17;
inline constexpr uint32_t kFloat8Val = 18;

inline constexpr uint32_t kShapeDim = 2;
inline constexpr uint32_t kShapeUnknownRank = 3;
inline constexpr uint32_t kDimSize = 1;
inline constexpr uint32_t kDimName = 2;
}  // namespace field

// The layout of a typed field on the wire. kOther: dtypes that are left to TensorFlow's own copies,
// because their elements are messages (variant, resource) or parts of a byte (int4 and smaller).
enum class Layout { kFixed32, kFixed64, kVarint, kBytesPerElement, kPackedBytes, kOther };

// The place of a dtype's values in a TensorProto, as in Tensor::FromProto.
struct TypedField {
  uint32_t number = 0;
  Layout layout = Layout::kOther;
};

TypedField FieldOf(tensorflow::DataType dtype);

}  // namespace millpond::tf
