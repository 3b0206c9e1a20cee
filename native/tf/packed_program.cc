#include "native/tf/packed_program.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "native/pjrt/packed_tensors.h"
#include "native/tf/status.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/literal_util.h"
#include "xla/primitive_util.h"
#include "xla/shape_util.h"

namespace millpond::tf {
namespace {

using base::Status;
using pjrt::PackedTensors;

constexpr xla::PrimitiveType kWord = xla::U32;
constexpr int64_t kWordBytes = PackedTensors::kWordBytes;

// A tensor of a program, as it lies in memory.
struct Layout {
  explicit Layout(const xla::Shape& shape)
      : type(shape.element_type()),
        dims(shape.dimensions().begin(), shape.dimensions().end()),
        count(xla::ShapeUtil::ElementsIn(shape)),
        element_bytes(xla::primitive_util::ByteWidth(type)),
        stored_type(StoredType(element_bytes)) {}

  // The elements are moved as unsigned integers, because XLA may compute bfloat16 as float32, which
  // changes a NaN.
  static xla::PrimitiveType StoredType(int64_t element_bytes) {
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

  int64_t bytes() const { return count * element_bytes; }
  int64_t word_count() const { return (bytes() + kWordBytes - 1) / kWordBytes; }

  xla::PrimitiveType type;
  std::vector<int64_t> dims;
  int64_t count;
  int64_t element_bytes;
  xla::PrimitiveType stored_type;
};

PackedTensors Place(const std::vector<Layout>& tensors) {
  std::vector<size_t> bytes;
  for (const Layout& tensor : tensors) bytes.push_back(tensor.bytes());
  return PackedTensors(bytes);
}

xla::XlaOp Zero(xla::XlaBuilder* builder, xla::PrimitiveType type) {
  return xla::ConstantLiteral(builder, xla::LiteralUtil::Zero(type));
}

// Returns the tensor whose bytes are the first ones of `words`.
xla::XlaOp FromWords(xla::XlaOp words, const Layout& tensor) {
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

// Returns the bytes of a tensor as `word_count` words; zeros follow them.
xla::XlaOp ToWords(xla::XlaOp elements, const Layout& tensor, int64_t word_count) {
  xla::XlaBuilder* const builder = elements.builder();
  // In memory a bool is a byte, 0 or 1.
  elements = tensor.type == xla::PRED ? xla::ConvertElementType(elements, tensor.stored_type)
                                      : xla::BitcastConvertType(elements, tensor.stored_type);
  elements = xla::Reshape(elements, {tensor.count});
  if (tensor.element_bytes < kWordBytes) {
    const int64_t word_elements = kWordBytes / tensor.element_bytes;
    const int64_t padding = tensor.word_count() * word_elements - tensor.count;
    elements = xla::PadInDim(elements, Zero(builder, tensor.stored_type), 0, 0, padding);
    elements = xla::Reshape(elements, {tensor.word_count(), word_elements});
  }
  const xla::XlaOp words =
      xla::Reshape(xla::BitcastConvertType(elements, kWord), {tensor.word_count()});
  return xla::PadInDim(words, Zero(builder, kWord), 0, 0, word_count - tensor.word_count());
}

// Returns the inputs that lie in the block that is argument 0 of `builder`'s program.
std::vector<xla::XlaOp> Unpack(const std::vector<Layout>& tensors, xla::XlaBuilder* builder) {
  const PackedTensors packed = Place(tensors);
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

// Returns the block of the outputs of `called`, whose result has this shape.
xla::XlaOp Pack(xla::XlaOp called, const xla::Shape& result) {
  std::vector<Layout> tensors;
  if (result.IsTuple()) {
    for (const xla::Shape& shape : result.tuple_shapes()) tensors.emplace_back(shape);
  } else {
    tensors.emplace_back(result);
  }
  const PackedTensors packed = Place(tensors);
  std::vector<xla::XlaOp> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t end = i + 1 < tensors.size() ? packed.offsets[i + 1] : packed.bytes;
    const auto word_count = static_cast<int64_t>(end - packed.offsets[i]) / kWordBytes;
    const xla::XlaOp output =
        result.IsTuple() ? xla::GetTupleElement(called, static_cast<int64_t>(i)) : called;
    parts.push_back(ToWords(output, tensors[i], word_count));
  }
  return xla::ConcatInDim(called.builder(), parts, 0);
}

}  // namespace

base::StatusOr<std::string> PackProgram(const std::string& hlo, size_t input_count) {
  constexpr char kDoing[] = "packing a program's inputs and outputs";
  xla::HloModuleProto module;
  if (!module.ParseFromString(hlo)) return base::Internal("a program of XLA cannot be read");
  const xla::XlaComputation whole(std::move(module));
  const auto shape = whole.GetProgramShape();
  MILLPOND_RETURN_IF_TF_ERROR(shape.status(), kDoing);
  const auto argument_count = static_cast<size_t>(shape->parameters_size());
  if (argument_count < input_count) return base::Internal("a program of XLA has too few arguments");
  std::vector<Layout> inputs;
  for (size_t i = 0; i < input_count; ++i) {
    inputs.emplace_back(shape->parameters(static_cast<int>(i)));
  }
  xla::XlaBuilder builder("packed");
  std::vector<xla::XlaOp> arguments = Unpack(inputs, &builder);
  for (size_t i = input_count; i < argument_count; ++i) {
    const auto number = static_cast<int64_t>(i - input_count + 1);
    arguments.push_back(xla::Parameter(&builder, number, shape->parameters(static_cast<int>(i)),
                                       "parameter" + std::to_string(number)));
  }
  const xla::XlaOp block = Pack(xla::Call(&builder, whole, arguments), shape->result());
  const auto packed = builder.Build(block);
  MILLPOND_RETURN_IF_TF_ERROR(packed.status(), kDoing);
  std::string serialized;
  // Equal programs have equal bytes, because an executable is found by them.
  if (tensorflow::SerializeToStringDeterministic(packed->proto(), &serialized)) return serialized;
  return base::Internal("a program of XLA cannot be serialized");
}

}  // namespace millpond::tf
