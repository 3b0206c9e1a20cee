#include <algorithm>
#include <string>

#include "native/tensor/tensor_codec.h"
#include "native/tf/tensor_storage.h"
#include "native/tf/typed_field.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace millpond::tensor {
namespace {

using base::ReplyBuffer;
using base::WireWriter;
using tensorflow::Tensor;
namespace field = tf::field;
using tf::FieldOf;
using tf::Layout;
using tf::TypedField;

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

// Calls `visit(first, end)` with ranges that cover `count`, as long as the reply is waited for.
template <typename Visit>
void ForEachRange(int64_t count, ReplyBuffer* reply, Visit visit) {
  for (int64_t first = 0; first < count; first += ReplyBuffer::kLookElements) {
    if (reply != nullptr && !reply->CheckIsWanted()) return;
    visit(first, std::min(count, first + ReplyBuffer::kLookElements));
  }
}

// Calls `put` with each element as the varint that its typed field carries. Signed elements are
// sign-extended to 64 bits.
template <typename T, typename Put>
void ForEachVarintOf(const Tensor& tensor, ReplyBuffer* reply, Put put) {
  const auto* values = static_cast<const T*>(tensor.data());
  ForEachRange(tensor.NumElements(), reply, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      put(static_cast<uint64_t>(static_cast<int64_t>(values[i])));
    }
  });
}

template <typename Put>
void ForEachVarint(const Tensor& tensor, ReplyBuffer* reply, Put put) {
  switch (tensor.dtype()) {
    case tensorflow::DT_INT8:
    case tensorflow::DT_QINT8:
      return ForEachVarintOf<int8_t>(tensor, reply, put);
    case tensorflow::DT_INT16:
    case tensorflow::DT_QINT16:
      return ForEachVarintOf<int16_t>(tensor, reply, put);
    case tensorflow::DT_INT32:
    case tensorflow::DT_QINT32:
      return ForEachVarintOf<int32_t>(tensor, reply, put);
    case tensorflow::DT_UINT32:
      return ForEachVarintOf<uint32_t>(tensor, reply, put);
    case tensorflow::DT_INT64:
    case tensorflow::DT_UINT64:
      return ForEachVarintOf<int64_t>(tensor, reply, put);
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_QUINT16:
      return ForEachVarintOf<uint16_t>(tensor, reply, put);
    default:
      return ForEachVarintOf<uint8_t>(tensor, reply, put);
  }
}

size_t PackedVarintBytes(const Tensor& tensor, ReplyBuffer* reply) {
  size_t bytes = 0;
  ForEachVarint(tensor, reply, [&](uint64_t value) { bytes += base::VarintBytes(value); });
  return bytes;
}

// Not by Tensor::flat, which checks the alignment that rows of a batch do not have.
const tensorflow::tstring* StringsOf(const Tensor& tensor) {
  return static_cast<const tensorflow::tstring*>(tensor.data());
}

size_t StringFieldBytes(const Tensor& tensor, ReplyBuffer* reply) {
  size_t bytes = 0;
  const tensorflow::tstring* const strings = StringsOf(tensor);
  ForEachRange(tensor.NumElements(), reply, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      bytes += base::DelimitedBytes(field::kStringVal, strings[i].size());
    }
  });
  return bytes;
}

void WriteStrings(const Tensor& tensor, ReplyBuffer* reply, WireWriter* writer) {
  const tensorflow::tstring* const strings = StringsOf(tensor);
  ForEachRange(tensor.NumElements(), reply, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      writer->BytesField(field::kStringVal, {strings[i].data(), strings[i].size()});
    }
  });
}

void WritePlainBytes(const Tensor& tensor, ReplyBuffer* reply, WireWriter* writer) {
  const auto* const bytes = static_cast<const char*>(tensor.data());
  ForEachRange(static_cast<int64_t>(tensor.TotalBytes()), reply, [&](int64_t first, int64_t end) {
    writer->Bytes(bytes + first, static_cast<size_t>(end - first));
  });
}

// Returns the field that carries the values of `tensor`, and its layout. It is tensor_content if
// `encoding` selects it and the dtype has plain memory.
TypedField ReplyField(const Tensor& tensor, TensorEncoding encoding) {
  const TypedField typed = FieldOf(tensor.dtype());
  const bool is_plain = typed.layout != Layout::kBytesPerElement && typed.layout != Layout::kOther;
  if (encoding == TensorEncoding::kTensorContent && is_plain) {
    return {field::kTensorContent, Layout::kPackedBytes};
  }
  return typed;
}

// Encodes variants and resource handles with TensorFlow.
std::string EncodeWithTensorFlow(const Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoField(&proto);
  return proto.SerializeAsString();
}

size_t ValueBytes(const Tensor& tensor, TypedField typed, ReplyBuffer* reply) {
  if (tensor.NumElements() == 0) return 0;
  if (typed.layout == Layout::kBytesPerElement) return StringFieldBytes(tensor, reply);
  if (typed.layout == Layout::kVarint) {
    return base::DelimitedBytes(typed.number, PackedVarintBytes(tensor, reply));
  }
  return base::DelimitedBytes(typed.number, tensor.TotalBytes());
}

void WriteValues(const Tensor& tensor, TypedField typed, ReplyBuffer* reply, WireWriter* writer) {
  if (tensor.NumElements() == 0) return;
  if (typed.layout == Layout::kBytesPerElement) return WriteStrings(tensor, reply, writer);
  if (typed.layout == Layout::kVarint) {
    const size_t packed_bytes = PackedVarintBytes(tensor, reply);
    writer->Delimited(typed.number, packed_bytes);
    return ForEachVarint(tensor, reply, [&](uint64_t value) { writer->Varint(value); });
  }
  writer->Delimited(typed.number, tensor.TotalBytes());
  WritePlainBytes(tensor, reply, writer);
}

}  // namespace

size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding encoding,
                          ReplyBuffer* reply) {
  const Tensor& tensor = tensors.storage().tensors[index];
  const TypedField typed = ReplyField(tensor, encoding);
  if (typed.layout == Layout::kOther) return EncodeWithTensorFlow(tensor).size();
  return base::TagBytes(field::kDtype) + base::VarintBytes(tensor.dtype()) +
         base::DelimitedBytes(field::kTensorShape, ShapeBytes(tensor.shape())) +
         ValueBytes(tensor, typed, reply);
}

void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding encoding,
                  ReplyBuffer* reply, WireWriter* writer) {
  const Tensor& tensor = tensors.storage().tensors[index];
  const TypedField typed = ReplyField(tensor, encoding);
  if (typed.layout == Layout::kOther) {
    const std::string bytes = EncodeWithTensorFlow(tensor);
    return writer->Bytes(bytes.data(), bytes.size());
  }
  writer->VarintField(field::kDtype, tensor.dtype());
  WriteShape(tensor.shape(), writer);
  WriteValues(tensor, typed, reply, writer);
}

}  // namespace millpond::tensor
