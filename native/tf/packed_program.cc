#include "native/tf/packed_program.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "native/pjrt/packed_tensors.h"
#include "native/tf/packed_block.h"
#include "native/tf/status.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace millpond::tf {
namespace {

using base::Status;
using pjrt::PackedTensors;

// Returns the bytes of a tensor as `word_count` words; zeros follow them.
xla::XlaOp ToWords(xla::XlaOp elements, const TensorLayout& tensor, int64_t word_count) {
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

// Returns the block of the outputs of `called`, whose result has this shape.
xla::XlaOp Pack(xla::XlaOp called, const xla::Shape& result) {
  std::vector<TensorLayout> tensors;
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
  std::vector<TensorLayout> inputs;
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
