#include "native/tf/signature.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/tf/tensor_list.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

TensorSpec Spec(int dtype, std::vector<int64_t> dims) {
  TensorSpec spec = testing::AnyShapeOf(dtype);
  spec.is_rank_known = true;
  spec.dims = std::move(dims);
  return spec;
}

TensorSpec Checked(TensorSpec spec) {
  spec.has_checked_shape = true;
  return spec;
}

TEST(MakeSignature, SortsByNameAndReadsDtypesAndShapes) {
  tensorflow::SignatureDef definition;
  definition.set_method_name("tensorflow/serving/predict");
  auto& z = (*definition.mutable_inputs())["z"];
  z.set_name("z:0");
  z.set_dtype(tensorflow::DT_FLOAT);
  for (const int64_t size : {int64_t{-1}, int64_t{3}, int64_t{-5}}) {
    z.mutable_tensor_shape()->add_dim()->set_size(size);
  }
  (*definition.mutable_inputs())["a"].mutable_tensor_shape()->set_unknown_rank(true);
  (*definition.mutable_inputs())["m"].set_name("m:0");
  const Signature signature = MakeSignature("serving_default", definition);
  ASSERT_EQ(signature.inputs.size(), 3);
  EXPECT_EQ(signature.method_name, "tensorflow/serving/predict");
  EXPECT_EQ(signature.inputs[0].name, "a");
  EXPECT_FALSE(signature.inputs[0].is_rank_known);
  EXPECT_FALSE(signature.inputs[1].is_rank_known);
  EXPECT_EQ(signature.inputs[2].tensor_name, "z:0");
  EXPECT_EQ(signature.inputs[2].dims, (std::vector<int64_t>{-1, 3, -1}));
  EXPECT_EQ(DescribeTensor(signature.inputs[2]), "float32[?,3,?]");
}

TEST(FindTensorSpec, FindsEachNameAndNoOther) {
  std::vector<TensorSpec> specs(3);
  specs[0].name = "a";
  specs[1].name = "b";
  specs[2].name = "ba";
  EXPECT_EQ(FindTensorSpec(specs, "a"), 0);
  EXPECT_EQ(FindTensorSpec(specs, "ba"), 2);
  for (const char* name : {"", "A", "aa", "bb", "c"}) EXPECT_EQ(FindTensorSpec(specs, name), -1);
  EXPECT_EQ(FindTensorSpec({}, "a"), -1);
}

TEST(TensorFits, TakesAnyShapeOfTheDtypeUnlessShapesAreChecked) {
  const TensorSpec spec = Spec(tensorflow::DT_FLOAT, {TensorSpec::kUnknownSize, 3});
  EXPECT_TRUE(TensorFits(tensorflow::DT_FLOAT, {}, spec));
  EXPECT_TRUE(TensorFits(tensorflow::DT_FLOAT, {1, 4}, spec));
  EXPECT_FALSE(TensorFits(tensorflow::DT_DOUBLE, {1, 3}, spec));
  EXPECT_FALSE(ShapeFits({1, 4}, spec));
  EXPECT_TRUE(ShapeFits({1, 3}, spec));
}

TEST(TensorFits, ComparesDtypeRankAndEachKnownSize) {
  const TensorSpec spec = Checked(Spec(tensorflow::DT_FLOAT, {TensorSpec::kUnknownSize, 3}));
  EXPECT_TRUE(TensorFits(tensorflow::DT_FLOAT, {0, 3}, spec));
  EXPECT_TRUE(TensorFits(tensorflow::DT_FLOAT, {1'000, 3}, spec));
  EXPECT_FALSE(TensorFits(tensorflow::DT_DOUBLE, {1, 3}, spec));
  EXPECT_FALSE(TensorFits(tensorflow::DT_FLOAT, {1, 4}, spec));
  EXPECT_FALSE(TensorFits(tensorflow::DT_FLOAT, {3}, spec));
  EXPECT_FALSE(TensorFits(tensorflow::DT_FLOAT, {1, 1, 3}, spec));
}

TEST(TensorFits, AcceptsScalarsAndAnyShapeIfTheRankIsOpen) {
  const TensorSpec scalar = Checked(Spec(tensorflow::DT_INT64, {}));
  const TensorSpec any = Checked(testing::AnyShapeOf(tensorflow::DT_INT64));
  EXPECT_TRUE(TensorFits(tensorflow::DT_INT64, {}, scalar));
  EXPECT_FALSE(TensorFits(tensorflow::DT_INT64, {1}, scalar));
  EXPECT_TRUE(TensorFits(tensorflow::DT_INT64, {}, any));
  EXPECT_TRUE(TensorFits(tensorflow::DT_INT64, {2, 2}, any));
}

TEST(DescribeTensor, WritesTypesAndShapesAsNumpyDoes) {
  EXPECT_EQ(DescribeTensor(Spec(tensorflow::DT_DOUBLE, {})), "float64[]");
  EXPECT_EQ(DescribeTensor(Spec(tensorflow::DT_STRING, {-1})), "string[?]");
  EXPECT_EQ(DescribeTensor(testing::AnyShapeOf(tensorflow::DT_INT8)), "int8[...]");
  EXPECT_EQ(DtypeName(77), "dtype 77");
  EXPECT_EQ(DtypeName(tensorflow::DT_BFLOAT16), "bfloat16");
}

TEST(TensorList, ResetFreesWhatItHeld) {
  TensorList list;
  EXPECT_EQ(list.size(), 0);
  list.Reset(2);
  const tensorflow::Tensor kept = testing::Vector<float>({1, 2});
  list.tensors()[1] = kept;
  EXPECT_FALSE(kept.RefCountIsOne());
  list.Reset(3);
  EXPECT_TRUE(kept.RefCountIsOne());
  EXPECT_EQ(list.size(), 3);
}

TEST(TensorList, MovesItsTensors) {
  TensorList list;
  list.Reset(1);
  list.tensors()[0] = testing::Scalar<int64_t>(7);
  TensorList moved = std::move(list);
  ASSERT_EQ(moved.size(), 1);
  EXPECT_EQ(moved.tensors()[0].scalar<int64_t>()(), 7);
}

}  // namespace
}  // namespace millpond::tf
