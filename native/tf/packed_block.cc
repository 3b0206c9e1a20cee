#include "native/tf/packed_block.h"

#include "xla/literal_util.h"
#include "xla/primitive_util.h"
#include "xla/shape_util.h"

namespace millpond::tf {
namespace {

xla::PrimitiveType StoredType(int64_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return xla::U8;
    case 2:
      return xla::U16;
    case 4:
      return xla::U32;
    default:
      return xla::U64;
  }
}

// Returns the tensor whose bytes are the first ones of `words`.
xla::XlaOp FromWords(xla::XlaOp words, const TensorLayout& tensor) {
  if (tensor.element_bytes > kWordBytes) {
    words = xla::Reshape(words, {tensor.count, tensor.element_bytes / kWordBytes});
  }
  xla::XlaOp elements = xla::BitcastConvertType(words, tensor.stored_type);
  if (tensor.element_bytes < kWordBytes) {
    const int64_t stored_count = tensor.word_count() * kWordBytes / tensor.element_bytes;
    elements = xla::Slice(xla::Reshape(elements, {stored_count}), {0}, {tensor.count}, {1});
  }
  elements = tensor.type == xla::PRED ? xla::Ne(elements, Zero(words.builder(), tensor.stored_type))
                                      : xla::BitcastConvertType(elements, tensor.type);
  return xla::Reshape(elements, tensor.dims);
}

}  // namespace

TensorLayout::TensorLayout(const xla::Shape& shape)
    : type(shape.element_type()),
      dims(shape.dimensions().begin(), shape.dimensions().end()),
      count(xla::ShapeUtil::ElementsIn(shape)),
      element_bytes(xla::primitive_util::ByteWidth(type)),
      stored_type(StoredType(element_bytes)) {}

pjrt::PackedTensors Place(const std::vector<TensorLayout>& tensors) {
  std::vector<size_t> bytes;
  for (const TensorLayout& tensor : tensors) bytes.push_back(tensor.bytes());
  return pjrt::PackedTensors(bytes);
}

xla::XlaOp Zero(xla::XlaBuilder* builder, xla::PrimitiveType type) {
  return xla::ConstantLiteral(builder, xla::LiteralUtil::Zero(type));
}

std::vector<xla::XlaOp> Unpack(const std::vector<TensorLayout>& tensors, xla::XlaBuilder* builder) {
  const pjrt::PackedTensors packed = Place(tensors);
  const auto word_count = static_cast<int64_t>(packed.bytes) / kWordBytes;
  const xla::XlaOp block =
      xla::Parameter(builder, 0, xla::ShapeUtil::MakeShape(kWord, {word_count}), "inputs");
  std::vector<xla::XlaOp> unpacked;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto first = static_cast<int64_t>(packed.offsets[i]) / kWordBytes;
    const xla::XlaOp words = xla::Slice(block, {first}, {first + tensors[i].word_count()}, {1});
    unpacked.push_back(FromWords(words, tensors[i]));
  }
  return unpacked;
}

}  // namespace millpond::tf
