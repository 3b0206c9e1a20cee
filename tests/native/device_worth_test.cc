#include "native/tf/device_worth.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "xla/service/hlo.pb.h"

namespace millpond::tf {
namespace {

void SetShape(const std::vector<int64_t>& dims, xla::HloInstructionProto* instruction) {
  for (const int64_t size : dims) instruction->mutable_shape()->add_dimensions(size);
}

xla::HloInstructionProto* AddInstruction(int64_t id, const char* opcode,
                                         const std::vector<int64_t>& dims,
                                         const std::vector<int64_t>& operands,
                                         xla::HloComputationProto* computation) {
  xla::HloInstructionProto* const instruction = computation->add_instructions();
  instruction->set_id((int64_t{1} << 32) + id);  // as XlaBuilder does, also where operands lack it
  instruction->set_opcode(opcode);
  SetShape(dims, instruction);
  for (const int64_t operand : operands) instruction->add_operand_ids(operand);
  return instruction;
}

TEST(DeviceWorth, ADotCountsTwiceItsProducts) {
  xla::HloModuleProto module;
  xla::HloComputationProto* const computation = module.add_computations();
  AddInstruction(1, "parameter", {8, 3}, {}, computation);
  AddInstruction(2, "parameter", {3, 5}, {}, computation);
  AddInstruction(3, "dot", {8, 5}, {1, 2}, computation)
      ->mutable_dot_dimension_numbers()
      ->add_lhs_contracting_dimensions(1);
  AddInstruction(4, "add", {8, 5}, {3, 3}, computation);
  EXPECT_EQ(CountProductFlops(module.SerializeAsString()), 2 * 8 * 5 * 3);
}

TEST(DeviceWorth, AConvolutionCountsItsFilter) {
  xla::HloModuleProto module;
  xla::HloComputationProto* const computation = module.add_computations();
  AddInstruction(1, "parameter", {1, 10, 10, 4}, {}, computation);
  AddInstruction(2, "parameter", {3, 3, 4, 6}, {}, computation);
  AddInstruction(3, "convolution", {1, 8, 8, 6}, {1, 2}, computation)
      ->mutable_convolution_dimension_numbers()
      ->set_kernel_output_feature_dimension(3);
  EXPECT_EQ(CountProductFlops(module.SerializeAsString()), 2 * 8 * 8 * 6 * (3 * 3 * 4));
}

TEST(DeviceWorth, ComputationsAreCountedTogether) {
  xla::HloModuleProto module;
  for (int i = 0; i < 2; ++i) {
    xla::HloComputationProto* const computation = module.add_computations();
    AddInstruction(1, "parameter", {1, 2}, {}, computation);
    AddInstruction(2, "dot", {1, 1}, {1, 1}, computation)
        ->mutable_dot_dimension_numbers()
        ->add_lhs_contracting_dimensions(1);
  }
  EXPECT_EQ(CountProductFlops(module.SerializeAsString()), 2 * 2 * 2);
}

TEST(DeviceWorth, BytesThatAreNoProgramHaveNoProducts) {
  EXPECT_EQ(CountProductFlops("no program"), 0);
}

TEST(DeviceWorth, ASignatureWithoutProductsIsNotWorthIt) {
  EXPECT_EQ(WhyNotWorthAccelerating(0, 0), "it has no product of matrices that XLA can compile");
}

TEST(DeviceWorth, TheBytesThatTravelDecide) {
  EXPECT_EQ(WhyNotWorthAccelerating(10 * kFlopsPerByte, 10), "");
  const std::string reason = WhyNotWorthAccelerating(10 * kFlopsPerByte - 1, 10);
  EXPECT_NE(reason.find("99 flops a row"), std::string::npos) << reason;
  EXPECT_NE(reason.find("10 bytes a row"), std::string::npos) << reason;
}

}  // namespace
}  // namespace millpond::tf
