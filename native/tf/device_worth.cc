#include "native/tf/device_worth.h"

#include <unordered_map>

#include "xla/service/hlo.pb.h"

namespace millpond::tf {
namespace {

using Shapes =
    std::unordered_map<uint32_t, const xla::ShapeProto*>;  // of instructions, by their id

// Instructions have ids of 64 bits, and operands may have the lower half of them.
uint32_t LocalId(int64_t id) { return static_cast<uint32_t>(id); }

int64_t ElementCount(const xla::ShapeProto& shape) {
  int64_t count = 1;
  for (const int64_t size : shape.dimensions()) count *= size;
  return count;
}

// The products of which an element of a dot is the sum.
int64_t DepthOfDot(const xla::HloInstructionProto& dot, const xla::ShapeProto& left) {
  int64_t depth = 1;
  for (const int64_t dim : dot.dot_dimension_numbers().lhs_contracting_dimensions()) {
    if (dim < left.dimensions_size()) depth *= left.dimensions(static_cast<int>(dim));
  }
  return depth;
}

// The same of a convolution: the filter's elements, each once for each output feature.
int64_t DepthOfConvolution(const xla::HloInstructionProto& convolution,
                           const xla::ShapeProto& filter) {
  const int64_t feature =
      convolution.convolution_dimension_numbers().kernel_output_feature_dimension();
  if (feature >= filter.dimensions_size()) return 0;
  const int64_t feature_count = filter.dimensions(static_cast<int>(feature));
  return feature_count == 0 ? 0 : ElementCount(filter) / feature_count;
}

int64_t FlopsOf(const xla::HloInstructionProto& instruction, const Shapes& shapes) {
  const bool is_dot = instruction.opcode() == "dot";
  if ((!is_dot && instruction.opcode() != "convolution") || instruction.operand_ids_size() < 2) {
    return 0;
  }
  const auto operand = shapes.find(LocalId(instruction.operand_ids(is_dot ? 0 : 1)));
  if (operand == shapes.end()) return 0;
  const int64_t depth = is_dot ? DepthOfDot(instruction, *operand->second)
                               : DepthOfConvolution(instruction, *operand->second);
  return 2 * ElementCount(instruction.shape()) * depth;
}

}  // namespace

int64_t CountProductFlops(const std::string& hlo) {
  xla::HloModuleProto module;
  if (!module.ParseFromString(hlo)) return 0;
  int64_t flops = 0;
  for (const xla::HloComputationProto& computation : module.computations()) {
    Shapes shapes;
    for (const auto& instruction : computation.instructions()) {
      shapes[LocalId(instruction.id())] = &instruction.shape();
    }
    for (const auto& instruction : computation.instructions()) {
      flops += FlopsOf(instruction, shapes);
    }
  }
  return flops;
}

std::string WhyNotWorthAccelerating(int64_t flops, int64_t crossing_bytes) {
  if (flops == 0) return "it has no product of matrices that XLA can compile";
  if (flops >= kFlopsPerByte * crossing_bytes) return "";
  return "its products of matrices take " + std::to_string(flops) + " flops a row, and " +
         std::to_string(crossing_bytes) + " bytes a row would travel: fewer than " +
         std::to_string(kFlopsPerByte) + " flops a byte";
}

}  // namespace millpond::tf
