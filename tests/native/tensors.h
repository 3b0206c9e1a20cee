#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "native/tensor/signature.h"
#include "native/tensor/tensor_codec.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

// Takes every shape of `dtype`.
inline tensor::TensorSpec AnyShapeOf(int dtype) {
  tensor::TensorSpec spec;
  spec.dtype = dtype;
  return spec;
}

// Decodes `bytes`, cut in two in the middle, to (*list)[0].
inline base::Status Decode(const std::string& bytes, int dtype, tensor::TensorList* list) {
  const SegmentedBytes segmented(bytes, {bytes.size() / 2});
  list->Reset(1);
  return tensor::DecodeTensor(segmented.reader(), AnyShapeOf(dtype), 0, list);
}
inline base::Status Decode(const tensorflow::TensorProto& proto, tensor::TensorList* list) {
  return Decode(proto.SerializeAsString(), proto.dtype(), list);
}

inline std::string Encode(const tensor::TensorList& list, size_t index,
                          tensor::TensorEncoding encoding) {
  std::string bytes(tensor::EncodedTensorBytes(list, index, encoding, nullptr), '\0');
  base::WireWriter writer(bytes.data());
  tensor::EncodeTensor(list, index, encoding, nullptr, &writer);
  return writer.position() == bytes.data() + bytes.size() ? bytes : "<not the size it said>";
}

inline std::string Encode(const tensorflow::Tensor& tensor, tensor::TensorEncoding encoding) {
  tensor::TensorList list;
  list.Reset(1);
  list.storage().tensors[0] = tensor;
  return Encode(list, 0, encoding);
}

// Encodes a tensor as a client sends it, and reads it from a reply; not initialized if it does not
// parse.
inline std::string TensorBytes(const tensorflow::Tensor& tensor) {
  return Encode(tensor, tensor::TensorEncoding::kTypedFields);
}
inline tensorflow::Tensor ParseTensor(const std::string& bytes) {
  tensorflow::TensorProto proto;
  tensorflow::Tensor tensor(tensorflow::DT_INVALID);
  if (!proto.ParseFromString(bytes) || !tensor.FromProto(proto)) return {};
  return tensor;
}

template <typename T>
tensorflow::Tensor Vector(std::initializer_list<T> values) {
  tensorflow::Tensor tensor(tensorflow::DataTypeToEnum<T>::value,
                            {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.flat<T>().data());
  return tensor;
}

template <typename T>
tensorflow::Tensor Scalar(const T& value) {
  tensorflow::Tensor tensor(tensorflow::DataTypeToEnum<T>::value, {});
  tensor.scalar<T>()() = value;
  return tensor;
}

template <typename T>
std::vector<T> Values(const tensorflow::Tensor& tensor) {
  const auto flat = tensor.flat<T>();
  return {flat.data(), flat.data() + flat.size()};
}

// Returns true for the same dtype, shape and bytes; a NaN equals the same NaN.
inline bool IsSame(const tensorflow::Tensor& a, const tensorflow::Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == tensorflow::DT_STRING) {
    return Values<tensorflow::tstring>(a) == Values<tensorflow::tstring>(b);
  }
  if (tensorflow::DataTypeCanUseMemcpy(a.dtype())) return a.tensor_data() == b.tensor_data();
  tensorflow::TensorProto proto_a;
  tensorflow::TensorProto proto_b;
  a.AsProtoField(&proto_a);
  b.AsProtoField(&proto_b);
  return proto_a.SerializeAsString() == proto_b.SerializeAsString();
}

}  // namespace millpond::testing
