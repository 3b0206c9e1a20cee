#include "native/tf/row_analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensor::RowVerdict;
using tensorflow::DT_BOOL;
using tensorflow::DT_FLOAT;
using tensorflow::DT_INT32;
using tensorflow::DT_RESOURCE;
using tensorflow::NodeDef;
using testing::SavedModelFiles;

using Attributes = std::vector<std::pair<std::string, int>>;

constexpr auto kIndependent = RowVerdict::Kind::kIndependent;
constexpr auto kUnknown = RowVerdict::Kind::kUnknown;
constexpr auto kMixes = RowVerdict::Kind::kMixes;

// A model on x: float32[?,4] -> y, which a test puts together. Its weights: w: float32[4,3],
// row: float32[4], block: float32[2,4].
class RowAnalysisTest : public ::testing::Test {
 protected:
  RowAnalysisTest() {
    files_.AddPlaceholder("x", DT_FLOAT, {-1, 4});
    Weights("w", {4, 3});
    Weights("row", {4});
    Weights("block", {2, 4});
  }

  void Weights(const std::string& name, const std::vector<int64_t>& dims) {
    files_.AddConst(name, tensorflow::Tensor(DT_FLOAT, tensorflow::TensorShape(dims)));
  }
  std::string Ints(const std::vector<int32_t>& values) {
    const std::string name = "ints_" + std::to_string(++made_);
    tensorflow::Tensor vector(DT_INT32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), vector.flat<int32_t>().data());
    files_.AddConst(name, vector);
    return name;
  }
  std::string Int(int32_t value) {
    const std::string name = "int_" + std::to_string(++made_);
    tensorflow::Tensor scalar(DT_INT32, {});
    scalar.scalar<int32_t>()() = value;
    files_.AddConst(name, scalar);
    return name;
  }
  // Adds a node of floats, whose name is that of its op and a number. `numbers` are attributes.
  std::string Node(const std::string& op, const std::vector<std::string>& inputs,
                   const Attributes& numbers = {}) {
    const std::string name = op + "_" + std::to_string(++made_);
    files_.AddNode(name, op, inputs, [&](NodeDef* node) {
      for (const char* type : {"T", "SrcT", "Tparams"}) {
        (*node->mutable_attr())[type].set_type(DT_FLOAT);
      }
      for (const auto& [attribute, number] : numbers) {
        (*node->mutable_attr())[attribute].set_i(number);
      }
    });
    return name;
  }
  // As x.shape[0] is written down.
  std::string RowCount() {
    const std::string shape = Node("Shape", {"x"}, {});
    const std::string count =
        Node("StridedSlice", {shape, Ints({0}), Ints({1}), Ints({1})}, {{"shrink_axis_mask", 1}});
    Attribute(count, "T").set_type(DT_INT32);
    Attribute(count, "Index").set_type(DT_INT32);
    return count;
  }
  std::string Floats(const std::string& integers) {
    const std::string name = Node("Cast", {integers});
    Attribute(name, "SrcT").set_type(DT_INT32);
    Attribute(name, "DstT").set_type(DT_FLOAT);
    return name;
  }
  std::string Pack(const std::vector<std::string>& integers, int axis) {
    const std::string name =
        Node("Pack", integers, {{"N", static_cast<int>(integers.size())}, {"axis", axis}});
    Attribute(name, "T").set_type(DT_INT32);
    return name;
  }
  // float32[2*R,2]: the first halves of all rows, then the second ones.
  std::string Interleaved() {
    const std::string name = "paddings_" + std::to_string(++made_);
    tensorflow::Tensor paddings(DT_INT32, {1, 2});
    paddings.flat<int32_t>().setZero();
    files_.AddConst(name, paddings);
    return Node("SpaceToBatchND", {"x", Ints({2}), name});
  }
  tensorflow::AttrValue& Attribute(const std::string& name, const std::string& attribute) {
    for (NodeDef& node : *files_.meta_graph().mutable_graph_def()->mutable_node()) {
      if (node.name() == name) return (*node.mutable_attr())[attribute];
    }
    ADD_FAILURE() << name;
    static tensorflow::AttrValue none;
    return none;
  }

  RowVerdict VerdictOf(const std::string& output) {
    const std::string name = "signature_" + std::to_string(++made_);
    files_.AddSignature(name, {{"x", "x:0", DT_FLOAT}}, {{"y", output + ":0", DT_FLOAT}});
    auto& x = (*(*files_.meta_graph().mutable_signature_def())[name].mutable_inputs())["x"];
    x.mutable_tensor_shape()->Clear();
    for (const int64_t size : {-1, 4}) x.mutable_tensor_shape()->add_dim()->set_size(size);
    return AnalyzeRows(files_.meta_graph()).find(name)->second;
  }
  void Expect(RowVerdict::Kind kind, const std::string& output) {
    const RowVerdict verdict = VerdictOf(output);
    EXPECT_EQ(verdict.kind, kind) << output << ": " << verdict.reason;
  }

  SavedModelFiles files_;
  int made_ = 0;
};

TEST_F(RowAnalysisTest, ElementwiseOpsKeepRows) {
  Expect(kIndependent, Node("Relu", {Node("Mul", {"x", Node("Tanh", {"x"})})}));
}

TEST_F(RowAnalysisTest, ReasonNamesOutputNodeAndOp) {
  const std::string sum = Node("Sum", {"x", Int(0)});
  const RowVerdict verdict = VerdictOf(Node("Sub", {"x", sum}));
  EXPECT_EQ(verdict.kind, kMixes);
  EXPECT_EQ(verdict.reason, "output 'y': node '" + sum + "' (Sum) reduces over the rows");
}

TEST_F(RowAnalysisTest, WhatHasNoDimensionInTheRowsPlaceMayBeCombined) {
  Expect(kIndependent, Node("AddV2", {"x", "row"}));
  Expect(kIndependent, Node("AddV2", {Node("ExpandDims", {"x", Int(1)}), "block"}));
  // With two rows it would fit, and give each row another weight.
  Expect(kUnknown, Node("AddV2", {"x", "block"}));
}

// The rows of one operand lie along the columns of the other.
TEST_F(RowAnalysisTest, RowsAgainstRowsMix) {
  const std::string vector = Node("Sum", {"x", Int(1)});
  Expect(kMixes, Node("AddV2", {"x", vector}));
  Expect(kIndependent, Node("AddV2", {"x", Node("ExpandDims", {vector, Int(1)})}));
}

TEST_F(RowAnalysisTest, MatricesMultiplyRows) {
  Expect(kIndependent, Node("MatMul", {"x", "w"}));
  const std::string sums = Node("MatMul", {"x", "x"});
  Expect(kMixes, sums);
  const std::string flipped = Node("MatMul", {"x", "w"});
  Attribute(flipped, "transpose_a").set_b(true);
  Expect(kMixes, flipped);
}

TEST_F(RowAnalysisTest, ReductionsMixAlongTheRowsOnly) {
  for (const int axis : {0, -2}) Expect(kMixes, Node("Max", {"x", Ints({axis})}));
  for (const int axis : {1, -1}) Expect(kIndependent, Node("Max", {"x", Ints({axis})}));
  Expect(kMixes, Node("Max", {"x", Ints({1, 0})}));
  Expect(kUnknown, Node("Max", {"x", Node("Cast", {"row"})}));
}

TEST_F(RowAnalysisTest, TransposedRowsAreFollowed) {
  const std::string columns = Node("Transpose", {"x", Ints({1, 0})});
  Expect(kUnknown, columns);
  Expect(kMixes, Node("Softmax", {columns}));
  Expect(kIndependent,
         Node("Transpose",
              {Node("Sum", {Node("ExpandDims", {columns, Int(0)}), Int(0)}), Ints({1, 0})}));
}

TEST_F(RowAnalysisTest, ReshapeKeepsWhatLiesInOnePiece) {
  Expect(kIndependent, Node("Reshape", {"x", Ints({-1, 2, 2})}));
  // Two entries of a row each, and back.
  const std::string pairs = Node("Reshape", {"x", Ints({-1, 2})});
  Expect(kUnknown, pairs);
  Expect(kIndependent, Node("Reshape", {Node("Relu", {pairs}), Ints({-1, 4})}));
  Expect(kMixes, Node("Reshape", {"x", Ints({-1, 8})}));
  Expect(kUnknown, Node("Reshape", {"x", Ints({4, -1})}));
}

TEST_F(RowAnalysisTest, ReshapeToTheNumberOfRowsKeepsThem) {
  const std::string shape = Node("Pack", {RowCount(), Int(-1)}, {{"N", 2}});
  Attribute(shape, "T").set_type(DT_INT32);
  Expect(kIndependent, Node("Reshape", {Node("Reshape", {"x", Ints({-1})}), shape}));
}

TEST_F(RowAnalysisTest, SlicesMixIfTheyTakeRowsByTheirPlace) {
  const auto slice = [this](std::vector<int32_t> begin, std::vector<int32_t> end, int begin_mask,
                            int end_mask) {
    const std::string name = Node("StridedSlice", {"x", Ints(begin), Ints(end), Ints({1, 1})},
                                  {{"begin_mask", begin_mask}, {"end_mask", end_mask}});
    Attribute(name, "Index").set_type(DT_INT32);
    return name;
  };
  Expect(kIndependent, slice({0, 1}, {0, 3}, 1, 1));
  Expect(kMixes, slice({0, 0}, {1, 4}, 0, 0));
  Expect(kMixes, slice({1, 0}, {0, 0}, 0, 3));
}

TEST_F(RowAnalysisTest, GathersTakeRowsAsIndices) {
  const std::string ids = Node("Cast", {"x"});
  Attribute(ids, "DstT").set_type(DT_INT32);
  const std::string looked_up = Node("GatherV2", {"w", ids, Int(0)});
  Attribute(looked_up, "Tindices").set_type(DT_INT32);
  Attribute(looked_up, "Taxis").set_type(DT_INT32);
  Expect(kIndependent, looked_up);
  const std::string swapped = Node("GatherV2", {"x", Ints({1, 0}), Int(0)});
  Attribute(swapped, "Tindices").set_type(DT_INT32);
  Attribute(swapped, "Taxis").set_type(DT_INT32);
  Expect(kMixes, swapped);
}

TEST_F(RowAnalysisTest, NumberOfRowsIsNoValueOfARow) {
  const std::string count = Node("Cast", {RowCount()});
  Attribute(count, "SrcT").set_type(DT_INT32);
  Attribute(count, "DstT").set_type(DT_FLOAT);
  Expect(kMixes, Node("RealDiv", {"x", count}));
  // Zeros of as many rows are the same for each.
  const std::string shape = Node("Pack", {RowCount(), Int(4)}, {{"N", 2}});
  Attribute(shape, "T").set_type(DT_INT32);
  tensorflow::Tensor zero(DT_FLOAT, {});
  zero.scalar<float>()() = 0;
  files_.AddConst("zero", zero);
  const std::string zeros = Node("Fill", {shape, "zero"});
  Expect(kIndependent, Node("AddV2", {"x", zeros}));
}

TEST_F(RowAnalysisTest, WhatIsNotForeseenIsUnknown) {
  const RowVerdict verdict = VerdictOf(Node("Betainc2", {"x"}));
  EXPECT_EQ(verdict.kind, kUnknown);
  EXPECT_NE(verdict.reason.find("(Betainc2) is not a registered op"), std::string::npos);
  Expect(kUnknown, Node("MatrixSetDiag", {"x", "row"}));
  Expect(kUnknown, "row");
  Expect(kUnknown, "nowhere");
}

TEST_F(RowAnalysisTest, RandomNumbersMix) {
  const std::string noise = Node("RandomUniform", {Node("Shape", {"x"})});
  Attribute(noise, "T").set_type(DT_INT32);
  Attribute(noise, "dtype").set_type(DT_FLOAT);
  Expect(kMixes, Node("AddV2", {"x", noise}));
}

TEST_F(RowAnalysisTest, WorstOutputDecides) {
  files_.AddSignature("both", {{"x", "x:0", DT_FLOAT}},
                      {{"a", Node("Relu", {"x"}) + ":0", DT_FLOAT},
                       {"b", Node("Sum", {"x", Int(0)}) + ":0", DT_FLOAT}});
  auto& x = (*(*files_.meta_graph().mutable_signature_def())["both"].mutable_inputs())["x"];
  x.mutable_tensor_shape()->Clear();
  for (const int64_t size : {-1, 4}) x.mutable_tensor_shape()->add_dim()->set_size(size);
  const RowVerdict verdict = AnalyzeRows(files_.meta_graph()).find("both")->second;
  EXPECT_EQ(verdict.kind, kMixes);
  EXPECT_EQ(verdict.reason.find("output 'b': "), 0U);
}

// Each node of a deep graph, and of a cycle, is looked at once.
TEST_F(RowAnalysisTest, DeepGraphsAndCyclesEnd) {
  std::string last = "x";
  for (int i = 0; i < 20'000; ++i) last = Node("Relu", {last});
  Expect(kIndependent, last);
  files_.AddNode("a", "Relu", {"b"}, testing::SetFloat);
  files_.AddNode("b", "Relu", {"a"}, testing::SetFloat);
  Expect(kUnknown, "b");
}

TEST_F(RowAnalysisTest, ListAsLongAsThereAreRowsIsUnknown) {
  const auto over_length = [this](const std::string& size) {
    const std::string list = Node("TensorListReserve", {Ints({4}), size});
    Attribute(list, "element_dtype").set_type(DT_FLOAT);
    Attribute(list, "shape_type").set_type(DT_INT32);
    return Node("RealDiv", {"x", Floats(Node("TensorListLength", {list}))});
  };
  Expect(kIndependent, over_length(Int(3)));
  Expect(kUnknown, over_length(RowCount()));
}

// An element that was not set is zeros, of the shape that the reading op names.
TEST_F(RowAnalysisTest, ZerosOfAListAreAsLongAsTheyAreRead) {
  const auto plus_item = [this](const std::string& shape) {
    std::string list = Node("TensorListReserve", {Ints({-1}), Int(2)});
    Attribute(list, "element_dtype").set_type(DT_FLOAT);
    Attribute(list, "shape_type").set_type(DT_INT32);
    list = Node("TensorListSetItem", {list, Int(0), "row"});
    Attribute(list, "element_dtype").set_type(DT_FLOAT);
    const std::string item = Node("TensorListGetItem", {list, Int(1), shape});
    Attribute(item, "element_dtype").set_type(DT_FLOAT);
    return Node("AddV2", {"x", item});
  };
  Expect(kIndependent, plus_item(Ints({-1})));
  Expect(kUnknown, plus_item(Pack({RowCount()}, 0)));
}

// The same dimension may be named twice.
TEST_F(RowAnalysisTest, SqueezeCountsADimensionOnce) {
  const std::string nested = Node("ExpandDims", {Node("ExpandDims", {"x", Int(0)}), Int(0)});
  const std::string squeezed = Node("Squeeze", {nested});
  for (const int dim : {0, -4}) {
    Attribute(squeezed, "squeeze_dims").mutable_list()->add_i(dim);
    Expect(kMixes, Node("Sum", {squeezed, Int(1)}));
    Expect(kIndependent, Node("Sum", {squeezed, Int(0)}));
  }
}

TEST_F(RowAnalysisTest, TransposedConvolutionMakesNoSizeOfRows) {
  const std::string images = Node("Reshape", {"x", Ints({-1, 2, 2, 1})});
  Weights("filter", {3, 3, 1, 1});
  const auto convolved = [&](const std::vector<std::string>& sizes) {
    const std::string name = Node("Conv2DBackpropInput", {Pack(sizes, 0), "filter", images});
    Attribute(name, "padding").set_s("SAME");
    for (const int stride : {1, 4, 4, 1}) Attribute(name, "strides").mutable_list()->add_i(stride);
    return name;
  };
  Expect(kIndependent, convolved({RowCount(), Int(5), Int(5), Int(1)}));
  Expect(kUnknown, convolved({Int(1), RowCount(), Int(5), Int(1)}));
  // Two sizes are those of an image.
  Expect(kUnknown, convolved({RowCount(), Int(5)}));
}

TEST_F(RowAnalysisTest, IntegersOf32BitsMayPassThem) {
  const auto times = [this](const std::string& number, int factor, const std::string& op,
                            const std::string& last) {
    std::string made = number;
    for (const auto& [next, other] :
         {std::pair<std::string, std::string>("Mul", Int(factor)), {op, last}}) {
      made = Node(next, {made, other});
      Attribute(made, "T").set_type(DT_INT32);
    }
    return made;
  };
  const std::string rows = RowCount();
  Expect(kIndependent, Node("RealDiv", {"x", Floats(times(rows, 3, "FloorDiv", rows))}));
  Expect(kMixes, Node("RealDiv", {"x", Floats(times(rows, 1 << 30, "FloorDiv", rows))}));
  Expect(kIndependent, Node("Max", {"x", times(Int(8), 8, "Minimum", Int(1))}));
  Expect(kUnknown, Node("Max", {"x", times(Int(65536), 65536, "Minimum", Int(1))}));
}

// Not a number is neither more nor less than a bound, and nothing is what infinity times zero is.
TEST_F(RowAnalysisTest, FloatsAreNotFollowedAsIntegers) {
  const std::string two = Floats(Int(2));
  const std::string largest = Node("Max", {"x", Ints({0, 1})});
  Expect(kMixes, Node("Mul", {"x", Node("Minimum", {Node("Maximum", {largest, two}), two})}));
  const std::string rows = Floats(RowCount());
  const std::string infinite = Node("FloorDiv", {rows, Node("Sub", {rows, two})});
  Expect(kMixes, Node("AddV2", {"x", Node("Mul", {infinite, Floats(Int(0))})}));
}

TEST_F(RowAnalysisTest, FixedIntegersMayHaveAShapeByTheRows) {
  const std::string rows = Node("Reshape", {Node("MatMul", {"x", "w"}), Ints({-1, 3, 1})});
  const auto plus = [&](const std::string& shape) {
    const std::string ints = Node("Reshape", {Ints({1, 2, 3, 4}), shape});
    Attribute(ints, "T").set_type(DT_INT32);
    return Node("AddV2", {Node("ExpandDims", {rows, Int(3)}), Floats(ints)});
  };
  Expect(kIndependent, plus(Ints({1, 4})));
  Expect(kMixes, plus(Pack({RowCount(), Int(-1)}, 0)));
}

TEST_F(RowAnalysisTest, ShapeFunctionMayFindThatThereAreNoRows) {
  const std::string values = Node("Svd", {Node("ExpandDims", {"x", Int(1)})});
  for (const bool has_vectors : {true, false}) {
    Attribute(values, "compute_uv").set_b(has_vectors);
    Expect(has_vectors ? kIndependent : kUnknown, Node("Relu", {values + ":1"}));
    Expect(kIndependent, Node("Relu", {values}));
  }
}

TEST_F(RowAnalysisTest, RangeOfEachRowIsUnknown) {
  Weights("one", {1});
  for (const auto& [axis, verdict] : {std::pair(0, kUnknown), {1, kIndependent}}) {
    const std::string rounded =
        Node("QuantizeAndDequantizeV4", {"x", "one", "one"}, {{"axis", axis}});
    Attribute(rounded, "range_given").set_b(true);
    Expect(verdict, rounded);
  }
}

TEST_F(RowAnalysisTest, FunctionThatIsNotFollowedIsUnknown) {
  const std::string mapped = Node("MapDefun", {"block"});
  Attribute(mapped, "Targuments").mutable_list()->add_type(DT_FLOAT);
  Attribute(mapped, "output_types").mutable_list()->add_type(DT_FLOAT);
  for (const int64_t size : {2, 4}) {
    auto* const shapes = Attribute(mapped, "output_shapes").mutable_list();
    if (shapes->shape_size() == 0) shapes->add_shape();
    shapes->mutable_shape(0)->add_dim()->set_size(size);
  }
  Attribute(mapped, "f").mutable_func()->set_name("draws");
  Expect(kUnknown, Node("AddV2", {Node("ExpandDims", {"x", Int(1)}), mapped}));
}

// It is not marked as stateful.
TEST_F(RowAnalysisTest, PoolingAtRandomMixes) {
  Weights("image", {1, 4, 4, 1});
  const std::string pooled = Node("FractionalMaxPool", {"image"});
  for (const float ratio : {1.0F, 1.5F, 1.5F, 1.0F}) {
    Attribute(pooled, "pooling_ratio").mutable_list()->add_f(ratio);
  }
  Expect(kMixes, Node("AddV2", {"x", Node("Max", {pooled, Ints({0, 1, 2, 3})})}));
}

// An element that was not set is zero, whatever the others are.
TEST_F(RowAnalysisTest, UnsetElementIsNotLikeTheOthers) {
  const auto list_of = [this](const std::string& element, tensorflow::DataType dtype) {
    std::string list;
    for (const auto& [op, inputs] :
         {std::pair<std::string, std::vector<std::string>>("TensorListReserve", {Int(-1), Int(2)}),
          {"TensorListSetItem", {"", Int(0), element}}}) {
      std::vector<std::string> all = inputs;
      if (!list.empty()) all.front() = list;
      list = Node(op, all);
      Attribute(list, "element_dtype").set_type(dtype);
      Attribute(list, "shape_type").set_type(DT_INT32);
    }
    return list;
  };
  const auto read = [this](const std::string& op, const std::vector<std::string>& inputs,
                           tensorflow::DataType dtype) {
    const std::string item = Node(op, inputs);
    Attribute(item, "element_dtype").set_type(dtype);
    return item + (op == "TensorListPopBack" ? ":1" : "");
  };
  const std::string axes = list_of(Int(1), DT_INT32);
  Expect(kUnknown,
         Node("Max", {"x", read("TensorListGetItem", {axes, Int(1), Int(-1)}, DT_INT32)}));
  const std::string rows = list_of("x", DT_FLOAT);
  for (const auto& [shape, verdict] : {std::pair(Int(-1), kIndependent),
                                       {Ints({-1, 4}), kIndependent},
                                       {Ints({1, 4}), kUnknown}}) {
    Expect(verdict, Node("Relu", {read("TensorListGetItem", {rows, Int(1), shape}, DT_FLOAT)}));
    Expect(verdict, Node("Relu", {read("TensorListPopBack", {rows, shape}, DT_FLOAT)}));
  }
  const std::string fixed = list_of("row", DT_FLOAT);
  Expect(kUnknown,
         Node("Mul", {"x", read("TensorListPopBack", {fixed, Pack({RowCount()}, 0)}, DT_FLOAT)}));
  Expect(kUnknown,
         Node("Mul", {"x", read("TensorListGetItem", {fixed, Int(1), Ints({3, 4})}, DT_FLOAT)}));
}

TEST_F(RowAnalysisTest, EinsumNeedsRowsOfTheSameOrder) {
  const auto products = [this](const std::string& equation, const std::vector<std::string>& of) {
    const std::string name = Node("Einsum", of, {{"N", static_cast<int>(of.size())}});
    Attribute(name, "equation").set_s(equation);
    return name;
  };
  const std::string pairs = Node("Reshape", {"x", Ints({-1, 2})});
  const auto whole = [&](const std::string& other) {
    return Node("Reshape", {products("ab,ab->a", {other, pairs}), Ints({-1, 2})});
  };
  Expect(kIndependent, whole(pairs));
  Expect(kUnknown, whole(Interleaved()));
  Expect(kUnknown, products("ab->aba", {"x"}));
}

TEST_F(RowAnalysisTest, CountsNeedWeightsOfTheSameOrder) {
  const auto counts = [this](const std::string& weights) {
    const std::string ids = Node("Cast", {Node("Reshape", {"x", Ints({-1, 2})})});
    Attribute(ids, "DstT").set_type(DT_INT32);
    const std::string counted = Node("DenseBincount", {ids, Int(9), weights});
    Attribute(counted, "Tidx").set_type(DT_INT32);
    return Node("Reshape", {counted, Ints({-1, 18})});
  };
  Weights("none", {0});
  Expect(kIndependent, counts("none"));
  Expect(kIndependent, counts(Node("Reshape", {"x", Ints({-1, 2})})));
  Expect(kUnknown, counts(Interleaved()));
  Weights("for_two_rows", {4, 2});
  Expect(kUnknown, counts("for_two_rows"));
}

TEST_F(RowAnalysisTest, BoundsFixANumberAndNoVector) {
  const auto bounded = [this](const std::string& integers) {
    std::string last = integers;
    for (const char* op : {"Maximum", "Minimum"}) {
      last = Node(op, {last, Int(2)});
      Attribute(last, "T").set_type(DT_INT32);
    }
    return last;
  };
  const std::string ids = Node("Cast", {"x"});
  Attribute(ids, "DstT").set_type(DT_INT32);
  const std::string largest = Node("Max", {ids, Ints({0, 1})});
  Attribute(largest, "T").set_type(DT_INT32);
  Expect(kIndependent, Node("RealDiv", {"x", Floats(bounded(largest))}));
  const std::string flat = Node("Reshape", {ids, Ints({-1})});
  const std::string distinct = Node("Unique", {flat});
  for (const std::string& name : {flat, distinct}) Attribute(name, "T").set_type(DT_INT32);
  const std::string size = Node("Size", {bounded(distinct)});
  Attribute(size, "T").set_type(DT_INT32);
  Expect(kMixes, Node("RealDiv", {"x", Floats(size)}));
}

TEST_F(RowAnalysisTest, BandOfDiagonalsTakesTwoDimensions) {
  Weights("padding", {});
  const auto matrices = [this](const std::string& band) {
    return Node("MatrixDiagV3", {"x", band, Int(-1), Int(-1), "padding"});
  };
  Expect(kIndependent, matrices(Int(0)));
  Expect(kIndependent, matrices(Ints({1, 1})));
  Expect(kUnknown, matrices(Ints({0, 3})));
}

TEST_F(RowAnalysisTest, VectorsPackedByTurnsAreNotChained) {
  const auto third = [this](int axis) {
    const std::string of_rows = Pack({Int(5), RowCount()}, 0);
    const std::string all = Node("Reshape", {Pack({of_rows, Ints({3, 3})}, axis), Ints({4})});
    Attribute(all, "T").set_type(DT_INT32);
    const std::string one =
        Node("StridedSlice", {all, Ints({2}), Ints({3}), Ints({1})}, {{"shrink_axis_mask", 1}});
    Attribute(one, "T").set_type(DT_INT32);
    Attribute(one, "Index").set_type(DT_INT32);
    return Node("RealDiv", {"x", Floats(one)});
  };
  Expect(kIndependent, third(0));
  Expect(kMixes, third(1));
}

// --- Conditionals of TensorFlow 1 ---

class RowAnalysisOfMergesTest : public RowAnalysisTest {
 protected:
  RowAnalysisOfMergesTest() {
    tensorflow::Tensor yes(DT_BOOL, {});
    yes.scalar<bool>()() = true;
    files_.AddConst("yes", yes);
    any_ = Node("Any", {Node("Equal", {"x", "row"}), Ints({0, 1})});
    files_.AddNode("v", "VarHandleOp", {}, [](NodeDef* node) {
      (*node->mutable_attr())["dtype"].set_type(DT_FLOAT);
      (*node->mutable_attr())["shape"].mutable_shape();
    });
  }

  // Returns the pivots of both branches.
  std::vector<std::string> Pivots(const std::string& predicate) {
    const std::string choice = Node("Switch", {predicate, predicate});
    std::vector<std::string> pivots = {Node("Identity", {choice}),
                                       Node("Identity", {choice + ":1"})};
    for (const std::string& name : {choice, pivots[0], pivots[1]}) {
      Attribute(name, "T").set_type(DT_BOOL);
    }
    return pivots;
  }
  std::string ConstAfter(const std::string& pivot) {
    const std::string name = "const_" + std::to_string(++made_);
    files_.AddConst(name, tensorflow::Tensor(DT_FLOAT, tensorflow::TensorShape()), {"^" + pivot});
    return name;
  }
  std::string IdentityAfter(const std::string& pivot) {
    return Node("Identity", {"row", "^" + pivot});
  }
  std::string ReadAfter(const std::string& pivot) {
    const std::string name = Node("ReadVariableOp", {"v", "^" + pivot});
    Attribute(name, "dtype").set_type(DT_FLOAT);
    return name;
  }
  std::string Merged(const std::string& a, const std::string& b) {
    return Node("Merge", {a, b}, {{"N", 2}});
  }
  std::string Times(const std::string& value) { return Node("Mul", {"x", value}); }

  std::string any_;
};

TEST_F(RowAnalysisOfMergesTest, PredicateCountsThoughBranchesOnlyWaitForIt) {
  for (const auto& [predicate, verdict] :
       {std::pair<std::string, RowVerdict::Kind>("yes", kIndependent), {any_, kMixes}}) {
    const auto pivots = Pivots(predicate);
    Expect(verdict, Times(Merged(ConstAfter(pivots[0]), ConstAfter(pivots[1]))));
    Expect(verdict, Times(Merged(IdentityAfter(pivots[0]), IdentityAfter(pivots[1]))));
    Expect(verdict, Times(Merged(ReadAfter(pivots[0]), ReadAfter(pivots[1]))));
    // Only the one branch that waits is chosen by it.
    const auto others = Pivots("yes");
    Expect(verdict, Times(Merged(ConstAfter(others[0]), ConstAfter(pivots[1]))));
  }
}

TEST_F(RowAnalysisOfMergesTest, OuterChoiceOfAnInnerMergeCounts) {
  const auto outer = Pivots(any_);
  const std::string predicate = Node("Identity", {"yes", "^" + outer[1]});
  Attribute(predicate, "T").set_type(DT_BOOL);
  const auto inner = Pivots(predicate);
  const std::string merged = Merged(ConstAfter(inner[0]), ConstAfter(inner[1]));
  Expect(kMixes, Times(Merged(ConstAfter(outer[0]), Node("Relu", {merged}))));
}

TEST_F(RowAnalysisOfMergesTest, ChoiceByTheNumberOfRowsMixes) {
  const std::string is_many = Node("Greater", {RowCount(), Int(4)});
  Attribute(is_many, "T").set_type(DT_INT32);
  const auto pivots = Pivots(is_many);
  Expect(kMixes, Times(Merged(ConstAfter(pivots[0]), ConstAfter(pivots[1]))));
}

TEST_F(RowAnalysisOfMergesTest, BranchThatNoSwitchChoosesIsUnknown) {
  Expect(kUnknown, Times(Merged(ConstAfter(Pivots("yes")[0]), "row")));
}

// --- Assertions ---

class RowAnalysisOfAssertionsTest : public RowAnalysisOfMergesTest {
 protected:
  std::string Bool(const std::string& op, const std::vector<std::string>& inputs,
                   const Attributes& numbers = {}) {
    const std::string name = Node(op, inputs, numbers);
    if (op == "Switch" || op == "Identity") Attribute(name, "T").set_type(DT_BOOL);
    return name;
  }
  // Returns x, after the assertion of a condition.
  std::string AfterAssertion(const std::string& condition, const std::string& input = "") {
    const std::string name = "assert_" + std::to_string(++made_);
    std::vector<std::string> inputs = {condition, "x"};
    if (!input.empty()) inputs.push_back(input);
    files_.AddNode(name, "Assert", inputs, [](NodeDef* node) {
      (*node->mutable_attr())["T"].mutable_list()->add_type(DT_FLOAT);
    });
    const std::string waits = Node("NoOp", {"^" + name});
    return Node("Identity", {"x", "^" + waits});
  }
  std::string Over(const std::string& op, const std::string& rows) {
    return Node(op, {rows, Ints({0, 1})});
  }
};

TEST_F(RowAnalysisOfAssertionsTest, CheckOfAllRowsIsOneOfEach) {
  const std::string is_small = Node("Less", {"x", "row"});
  Expect(kIndependent, AfterAssertion("yes"));
  Expect(kIndependent, AfterAssertion(Over("All", is_small)));
  Expect(kIndependent, AfterAssertion(Node("LogicalNot", {Over("Any", is_small)})));
  Expect(kIndependent, AfterAssertion(Node("LogicalAnd", {"yes", Over("All", is_small)})));
  // A row that fails alone would not fail beside one that passes.
  Expect(kUnknown, AfterAssertion(Over("Any", is_small)));
  Expect(kUnknown, AfterAssertion(Node("LogicalNot", {Over("All", is_small)})));
  const RowVerdict verdict = VerdictOf(AfterAssertion(Over("Any", is_small)));
  EXPECT_EQ(verdict.reason.find("node 'assert_"), 0U) << verdict.reason;
}

TEST_F(RowAnalysisOfAssertionsTest, CheckOfTheLargestIsOneOfEach) {
  Weights("most", {});
  const std::string largest = Over("Max", "x");
  const std::string smallest = Over("Min", "x");
  Expect(kIndependent, AfterAssertion(Node("Less", {largest, "most"})));
  Expect(kIndependent, AfterAssertion(Node("GreaterEqual", {"most", largest})));
  Expect(kIndependent, AfterAssertion(Node("LogicalAnd", {Node("Less", {largest, "most"}),
                                                          Node("Greater", {smallest, "most"})})));
  Expect(kUnknown, AfterAssertion(Node("Greater", {largest, "most"})));
  Expect(kUnknown, AfterAssertion(Node("Less", {smallest, "most"})));
  Expect(kUnknown, AfterAssertion(Node("Less", {Over("Mean", "x"), "most"})));
  // Not a number is not larger, beside a row that is.
  Expect(kUnknown, AfterAssertion(Node("LogicalNot", {Node("Greater", {largest, "most"})})));
}

// As look-ups check that each text is known.
TEST_F(RowAnalysisOfAssertionsTest, CheckThatThereIsNoneIsOneOfEach) {
  const std::string places = Node("Where", {Node("Less", {"x", "row"})});
  Attribute(places, "T").set_type(DT_BOOL);
  const std::string count = Node("Size", {places});
  Attribute(count, "T").set_type(tensorflow::DT_INT64);
  for (const auto& [number, verdict] : {std::pair(0, kIndependent), {1, kUnknown}}) {
    const std::string condition = Node("Equal", {count, Int(number)});
    Attribute(condition, "T").set_type(DT_INT32);
    Expect(verdict, AfterAssertion(condition));
  }
}

TEST_F(RowAnalysisOfAssertionsTest, CheckOfNumbersIsOneOfRows) {
  const auto after = [this](const std::string& checked) {
    return Node("Identity", {"x", "^" + Node("CheckNumerics", {checked})});
  };
  Expect(kIndependent, after("x"));
  Expect(kUnknown, after(Over("Max", "x")));
}

TEST_F(RowAnalysisOfAssertionsTest, CheckOfTheNumberOfRowsIsUnknown) {
  const auto compared = [this](const std::string& op, const std::string& with) {
    const std::string name = Node(op, {RowCount(), with});
    Attribute(name, "T").set_type(DT_INT32);
    return name;
  };
  Expect(kIndependent, AfterAssertion(compared("Equal", RowCount())));
  Expect(kUnknown, AfterAssertion(compared("GreaterEqual", Int(2))));
}

// TensorFlow 1 tells a failed check in a branch of its own.
TEST_F(RowAnalysisOfAssertionsTest, CheckTakesPlaceIfItDoesForARow) {
  const std::string is_small = Node("Less", {"x", "row"});
  for (const auto& [chooser, verdict] :
       {std::pair(Over("All", is_small), kIndependent), {Over("Any", is_small), kUnknown}}) {
    const std::string pivot = Bool("Switch", {chooser, chooser});
    const std::string failed = "^" + Bool("Identity", {pivot});
    const std::string passed = "^" + Bool("Identity", {pivot + ":1"});
    const std::string condition = Bool("Switch", {Over("All", is_small), chooser});
    Expect(verdict, AfterAssertion(condition, failed));
    Expect(kUnknown, AfterAssertion(condition + ":1", passed));
  }
}

// --- Functions ---

class RowAnalysisOfFunctionsTest : public RowAnalysisTest {
 protected:
  // Adds the function `name` of x: float32 with one node.
  void Function(const std::string& name, const std::string& op,
                const std::vector<std::string>& inputs) {
    auto* const function =
        files_.meta_graph().mutable_graph_def()->mutable_library()->add_function();
    function->mutable_signature()->set_name(name);
    auto* const argument = function->mutable_signature()->add_input_arg();
    argument->set_name("x");
    argument->set_type(DT_FLOAT);
    auto* const output = function->mutable_signature()->add_output_arg();
    output->set_name("y");
    output->set_type(DT_FLOAT);
    NodeDef* const node = function->add_node_def();
    node->set_name("inside");
    node->set_op(op);
    for (const std::string& input : inputs) node->add_input(input);
    (*node->mutable_attr())["T"].set_type(DT_FLOAT);
    (*function->mutable_ret())["y"] =
        std::string("inside:") + (op == "Relu" ? "activations" : "output") + ":0";
    if (op == "PartitionedCall") {
      (*node->mutable_attr())["f"].mutable_func()->set_name(name);
      (*node->mutable_attr())["Tin"].mutable_list()->add_type(DT_FLOAT);
      (*node->mutable_attr())["Tout"].mutable_list()->add_type(DT_FLOAT);
    }
    if (op == "Sum") {
      NodeDef* const axis = function->add_node_def();
      axis->set_name("axis");
      axis->set_op("Const");
      (*axis->mutable_attr())["dtype"].set_type(DT_INT32);
      tensorflow::Tensor zero(DT_INT32, {});
      zero.scalar<int32_t>()() = 0;
      zero.AsProtoField((*axis->mutable_attr())["value"].mutable_tensor());
    }
  }
  tensorflow::FunctionDef* LastFunction() {
    auto* const functions =
        files_.meta_graph().mutable_graph_def()->mutable_library()->mutable_function();
    return functions->Mutable(functions->size() - 1);
  }
  // The same in every run: an assertion like it may be in a batch.
  static void AddCheckThatHolds(tensorflow::FunctionDef* function) {
    NodeDef* const yes = function->add_node_def();
    yes->set_name("yes");
    yes->set_op("Const");
    (*yes->mutable_attr())["dtype"].set_type(DT_BOOL);
    tensorflow::Tensor value(DT_BOOL, {});
    value.scalar<bool>()() = true;
    value.AsProtoField((*yes->mutable_attr())["value"].mutable_tensor());
    NodeDef* const assertion = function->add_node_def();
    assertion->set_name("assertion");
    assertion->set_op("Assert");
    assertion->add_input("yes:output:0");
    assertion->add_input("x");
    (*assertion->mutable_attr())["T"].mutable_list()->add_type(DT_FLOAT);
  }
  std::string Call(const std::string& function) {
    const std::string name = "call_" + std::to_string(++made_);
    files_.AddNode(name, "StatefulPartitionedCall", {"x"}, [&](NodeDef* node) {
      (*node->mutable_attr())["f"].mutable_func()->set_name(function);
      (*node->mutable_attr())["Tin"].mutable_list()->add_type(DT_FLOAT);
      (*node->mutable_attr())["Tout"].mutable_list()->add_type(DT_FLOAT);
    });
    return name;
  }
  std::string If(const std::string& predicate, const std::string& then, const std::string& other) {
    const std::string name = "if_" + std::to_string(++made_);
    files_.AddNode(name, "StatelessIf", {predicate, "x"}, [&](NodeDef* node) {
      (*node->mutable_attr())["then_branch"].mutable_func()->set_name(then);
      (*node->mutable_attr())["else_branch"].mutable_func()->set_name(other);
      (*node->mutable_attr())["Tcond"].set_type(DT_BOOL);
    });
    return name;
  }
};

TEST_F(RowAnalysisOfFunctionsTest, BodiesAreWalked) {
  Function("keeps", "Relu", {"x"});
  Function("mixes", "Sum", {"x", "axis:output:0"});
  Expect(kIndependent, Call("keeps"));
  Expect(kMixes, Call("mixes"));
  Expect(kUnknown, Call("nowhere"));
}

// TensorFlow finds such a body when it makes the callable: after the analysis.
TEST_F(RowAnalysisOfFunctionsTest, NodeWithTooFewInputsIsUnknown) {
  Function("broken", "Sum", {"x"});
  Expect(kUnknown, Call("broken"));
}

TEST_F(RowAnalysisOfFunctionsTest, FunctionThatCallsItselfEnds) {
  Function("again", "PartitionedCall", {"x"});
  Expect(kUnknown, Call("again"));
}

// As tf.debugging.Assert has it: only what waits for the conditional needs it.
TEST_F(RowAnalysisOfFunctionsTest, BranchThatTellsAFailedCheckIsNotUnlike) {
  Function("passes", "Relu", {"x"});
  Function("tells", "Relu", {"x"});
  AddCheckThatHolds(LastFunction());
  const std::string equal = Node("Equal", {"x", "row"});
  for (const auto& [op, verdict] : {std::pair("All", kIndependent), {"Any", kUnknown}}) {
    const std::string check = Node(op, {equal, Ints({0, 1})});
    Expect(verdict, Node("Identity", {"x", "^" + If(check, "passes", "tells")}));
    Expect(kUnknown, Node("Identity", {"x", "^" + If(check, "tells", "passes")}));
  }
}

// Only what waits for the call needs it, so that its values are not asked for.
TEST_F(RowAnalysisOfFunctionsTest, CheckTooDeepToBeLookedAtIsUnknown) {
  const auto checked = [this](int depth) {
    const std::string outer = "f" + std::to_string(depth) + "_";
    for (int i = 0; i < depth; ++i) {
      Function(outer + std::to_string(i), "PartitionedCall", {"x"});
      LastFunction()->mutable_node_def(0)->mutable_attr()->at("f").mutable_func()->set_name(
          outer + std::to_string(i + 1));
    }
    Function(outer + std::to_string(depth), "Relu", {"x"});
    AddCheckThatHolds(LastFunction());
    return Node("Identity", {"x", "^" + Call(outer + "0")});
  };
  Expect(kIndependent, checked(90));
  Expect(kUnknown, checked(110));
}

TEST_F(RowAnalysisOfFunctionsTest, CheckAfterTooManyNodesIsUnknown) {
  // 18 times twice as many nodes.
  for (int i = 0; i < 18; ++i) {
    Function("f" + std::to_string(i), "PartitionedCall", {"x"});
    NodeDef* const first = LastFunction()->mutable_node_def(0);
    first->mutable_attr()->at("f").mutable_func()->set_name("f" + std::to_string(i + 1));
    NodeDef* const second = LastFunction()->add_node_def();
    *second = *first;
    second->set_name("second");
    second->set_input(0, "inside:output:0");
    LastFunction()->mutable_ret()->at("y") = "second:output:0";
  }
  Function("f18", "Relu", {"x"});
  AddCheckThatHolds(LastFunction());
  Expect(kIndependent, Node("Identity", {"x", "^" + Call("f4")}));
  Expect(kUnknown, Node("Identity", {"x", "^" + Call("f0")}));
}

TEST_F(RowAnalysisOfFunctionsTest, CheckInACallThatIsNotFollowedIsUnknown) {
  Function("checks", "Relu", {"x"});
  AddCheckThatHolds(LastFunction());
  Expect(kIndependent, Node("Identity", {"x", "^" + Call("checks")}));
  const std::string other = "other";
  files_.AddNode(other, "NoSuchCall", {"x"}, [](NodeDef* node) {
    (*node->mutable_attr())["function"].mutable_func()->set_name("checks");
  });
  Expect(kUnknown, Node("Identity", {"x", "^" + other}));
}

TEST_F(RowAnalysisOfFunctionsTest, BranchMixesIfTheRowsChooseIt) {
  Function("keeps", "Relu", {"x"});
  Function("also", "Relu", {"x"});
  Function("mixes", "Sum", {"x", "axis:output:0"});
  tensorflow::Tensor yes(DT_BOOL, {});
  yes.scalar<bool>()() = true;
  files_.AddConst("yes", yes);
  Expect(kIndependent, If("yes", "keeps", "also"));
  Expect(kMixes, If("yes", "keeps", "mixes"));
  const std::string equal = Node("Equal", {"x", "row"});
  const std::string any = Node("Any", {equal, Ints({0, 1})});
  const RowVerdict verdict = VerdictOf(If(any, "keeps", "also"));
  EXPECT_EQ(verdict.kind, kMixes);
  EXPECT_NE(verdict.reason.find("'" + any + "' (Any)"), std::string::npos) << verdict.reason;
  // The predicate is a scalar, and the branch is none.
  const std::string rank = Node("Rank", {If(any, "keeps", "also")});
  Expect(kMixes, Node("RealDiv", {"x", Floats(rank)}));
}

}  // namespace
}  // namespace millpond::tf
