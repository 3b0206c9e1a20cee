#include "native/tf/kernel_message.h"

#include "gtest/gtest.h"

namespace millpond::tf {
namespace {

TEST(KernelMessage, TextWithoutANodeStaysAsItIs) {
  EXPECT_EQ(KernelMessage("the run was cancelled"), "the run was cancelled");
  EXPECT_EQ(KernelMessage(""), "");
}

TEST(KernelMessage, NodesThatWaitedAreLeftOut) {
  EXPECT_EQ(KernelMessage("indices[0] = 9 is not in [0, 5)\n\t [[{{function_node f_37}}{{node "
                          "Gather}}]]\n\t [[StatefulPartitionedCall/_7]]"),
            "indices[0] = 9 is not in [0, 5) [node Gather]");
}

TEST(KernelMessage, DefinitionOfTheNodeBecomesItsName) {
  EXPECT_EQ(KernelMessage("Dimensions must be equal, but are 5 and 4 for '{{node a/MatMul}} = "
                          "BatchMatMulV2[T=DT_FLOAT, _kernel=\"K\", _output_shapes=[<unknown>], "
                          "_device=\"/job:localhost\"](Func/_7, b/Read)' with input shapes: [2,5], "
                          "[4,3]. [node a/MatMul]\n\t [[a/MatMul]]"),
            "Dimensions must be equal, but are 5 and 4 for node 'a/MatMul' with input shapes: "
            "[2,5], [4,3].");
  EXPECT_EQ(KernelMessage("bad shape for '{{node n}}' (op: 'Add')"),
            "bad shape for node 'n' (op: 'Add')");
}

TEST(KernelMessage, OfSeveralErrorsTheFirstIsKept) {
  EXPECT_EQ(KernelMessage("2 root error(s) found.\n  (0) INVALID_ARGUMENT: too wide\n\t [[{{node "
                          "x}}]]\n\t [[y/_3]]\n  (1) INVALID_ARGUMENT: too wide\n\t [[{{node "
                          "x}}]]\n0 successful operations.\n0 derived errors ignored."),
            "too wide [node x]");
}

TEST(KernelMessage, UnfinishedMarksAreKept) {
  EXPECT_EQ(KernelMessage("about {{node x"), "about {{node x");
  EXPECT_EQ(KernelMessage("for '{{node x}} = Op[](a, b"), "for '{{node x}} = Op[](a, b [node x]");
}

}  // namespace
}  // namespace millpond::tf
