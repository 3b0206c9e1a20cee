#include <string>

#include "native/tf/tensor_codec.h"
#include "native/tf/typed_field.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace millpond::tf {
namespace {

using base::WireWriter;
using tensorflow::Tensor;

size_t DimBytes(int64_t size) {
  return size == 0 ? 0 : base::TagBytes(field::kDimSize) + base::VarintBytes(size);
}

size_t ShapeBytes(const tensorflow::TensorShape& shape) {
  size_t bytes = 0;
  for (int i = 0; i < shape.dims(); ++i) {
    bytes += base::DelimitedBytes(field::kShapeDim, DimBytes(shape.dim_size(i)));
  }
  return bytes;
}

void WriteShape(const tensorflow::TensorShape& shape, WireWriter* writer) {
  writer->Delimited(field::kTensorShape, ShapeBytes(shape));
  for (int i = 0; i < shape.dims(); ++i) {
    const int64_t size = shape.dim_size(i);
    writer->Delimited(field::kShapeDim, DimBytes(size));
    if (size != 0) writer->VarintField(field::kDimSize, static_cast<uint64_t>(size));
  }
}

// Calls `put` with each element as the varint that its typed field carries: int32 fields sign
// extend to 64 bits.
template <typename T, typename Put>
void ForEachVarint(const Tensor& tensor, Put put) {
  const auto* values = static_cast<const T*>(tensor.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    put(static_cast<uint64_t>(static_cast<int64_t>(values[i])));
  }
}

template <typename Put>
void ForEachVarint(const Tensor& tensor, Put put) {
  switch (tensor.dtype()) {
    case tensorflow::DT_INT8:
    case tensorflow::DT_QINT8:
      return ForEachVarint<int8_t>(tensor, put);
    case tensorflow::DT_INT16:
    case tensorflow::DT_QINT16:
      return ForEachVarint<int16_t>(tensor, put);
    case tensorflow::DT_INT32:
    case tensorflow::DT_QINT32:
      return ForEachVarint<int32_t>(tensor, put);
    case tensorflow::DT_UINT32:
      return ForEachVarint<uint32_t>(tensor, put);
    case tensorflow::DT_INT64:
    case tensorflow::DT_UINT64:
      return ForEachVarint<int64_t>(tensor, put);
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_QUINT16:
      return ForEachVarint<uint16_t>(tensor, put);
    default:
      return ForEachVarint<uint8_t>(tensor, put);
  }
}

size_t PackedVarintBytes(const Tensor& tensor) {
  size_t bytes = 0;
  ForEachVarint(tensor, [&](uint64_t value) { bytes += base::VarintBytes(value); });
  return bytes;
}

size_t StringFieldBytes(const Tensor& tensor) {
  size_t bytes = 0;
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) {
    bytes += base::DelimitedBytes(field::kStringVal, strings(i).size());
  }
  return bytes;
}

void WriteStrings(const Tensor& tensor, WireWriter* writer) {
  const auto strings = tensor.flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) {
    writer->BytesField(field::kStringVal, {strings(i).data(), strings(i).size()});
  }
}

// Which field carries the values of `tensor`, and how: tensor_content where that was asked for and
// the dtype has plain memory.
TypedField ReplyField(const Tensor& tensor, TensorEncoding encoding) {
  const TypedField typed = FieldOf(tensor.dtype());
  const bool is_plain = typed.layout != Layout::kBytesPerElement && typed.layout != Layout::kOther;
  if (encoding == TensorEncoding::kTensorContent && is_plain) {
    return {field::kTensorContent, Layout::kPackedBytes};
  }
  return typed;
}

// Variants and resource handles: TensorFlow's own encoding.
std::string EncodeWithTensorFlow(const Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoField(&proto);
  return proto.SerializeAsString();
}

size_t ValueBytes(const Tensor& tensor, TypedField typed) {
  if (tensor.NumElements() == 0) return 0;
  if (typed.layout == Layout::kBytesPerElement) return StringFieldBytes(tensor);
  if (typed.layout == Layout::kVarint) {
    return base::DelimitedBytes(typed.number, PackedVarintBytes(tensor));
  }
  return base::DelimitedBytes(typed.number, tensor.TotalBytes());
}

void WriteValues(const Tensor& tensor, TypedField typed, WireWriter* writer) {
  if (tensor.NumElements() == 0) return;
  if (typed.layout == Layout::kBytesPerElement) return WriteStrings(tensor, writer);
  if (typed.layout == Layout::kVarint) {
    writer->Delimited(typed.number, PackedVarintBytes(tensor));
    return ForEachVarint(tensor, [&](uint64_t value) { writer->Varint(value); });
  }
  writer->BytesField(typed.number, {static_cast<const char*>(tensor.data()), tensor.TotalBytes()});
}

}  // namespace

size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding encoding) {
  const Tensor& tensor = tensors.tensors()[index];
  const TypedField typed = ReplyField(tensor, encoding);
  if (typed.layout == Layout::kOther) return EncodeWithTensorFlow(tensor).size();
  return base::TagBytes(field::kDtype) + base::VarintBytes(tensor.dtype()) +
         base::DelimitedBytes(field::kTensorShape, ShapeBytes(tensor.shape())) +
         ValueBytes(tensor, typed);
}

void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding encoding,
                  WireWriter* writer) {
  const Tensor& tensor = tensors.tensors()[index];
  const TypedField typed = ReplyField(tensor, encoding);
  if (typed.layout == Layout::kOther) {
    const std::string bytes = EncodeWithTensorFlow(tensor);
    return writer->Bytes(bytes.data(), bytes.size());
  }
  writer->VarintField(field::kDtype, tensor.dtype());
  WriteShape(tensor.shape(), writer);
  WriteValues(tensor, typed, writer);
}

}  // namespace millpond::tf
