#include "native/tensor/signature.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"

namespace millpond::tensor {
namespace {

TensorSpec AnyShapeOf(int dtype) {
  TensorSpec spec;
  spec.dtype = dtype;
  return spec;
}

TensorSpec Spec(int dtype, std::vector<int64_t> dims) {
  TensorSpec spec = AnyShapeOf(dtype);
  spec.is_rank_known = true;
  spec.dims = std::move(dims);
  return spec;
}

TensorSpec Checked(TensorSpec spec) {
  spec.has_checked_shape = true;
  return spec;
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
  const TensorSpec spec = Spec(dtype::kFloat, {TensorSpec::kUnknownSize, 3});
  EXPECT_TRUE(TensorFits(dtype::kFloat, {}, spec));
  EXPECT_TRUE(TensorFits(dtype::kFloat, {1, 4}, spec));
  EXPECT_FALSE(TensorFits(dtype::kDouble, {1, 3}, spec));
  EXPECT_FALSE(ShapeFits({1, 4}, spec));
  EXPECT_TRUE(ShapeFits({1, 3}, spec));
}

TEST(TensorFits, ComparesDtypeRankAndEachKnownSize) {
  const TensorSpec spec = Checked(Spec(dtype::kFloat, {TensorSpec::kUnknownSize, 3}));
  EXPECT_TRUE(TensorFits(dtype::kFloat, {0, 3}, spec));
  EXPECT_TRUE(TensorFits(dtype::kFloat, {1'000, 3}, spec));
  EXPECT_FALSE(TensorFits(dtype::kDouble, {1, 3}, spec));
  EXPECT_FALSE(TensorFits(dtype::kFloat, {1, 4}, spec));
  EXPECT_FALSE(TensorFits(dtype::kFloat, {3}, spec));
  EXPECT_FALSE(TensorFits(dtype::kFloat, {1, 1, 3}, spec));
}

TEST(TensorFits, AcceptsScalarsAndAnyShapeIfTheRankIsOpen) {
  const TensorSpec scalar = Checked(Spec(dtype::kInt64, {}));
  const TensorSpec any = Checked(AnyShapeOf(dtype::kInt64));
  EXPECT_TRUE(TensorFits(dtype::kInt64, {}, scalar));
  EXPECT_FALSE(TensorFits(dtype::kInt64, {1}, scalar));
  EXPECT_TRUE(TensorFits(dtype::kInt64, {}, any));
  EXPECT_TRUE(TensorFits(dtype::kInt64, {2, 2}, any));
}

TEST(DescribeTensor, WritesTypesAndShapesAsNumpyDoes) {
  EXPECT_EQ(DescribeTensor(Spec(dtype::kDouble, {})), "float64[]");
  EXPECT_EQ(DescribeTensor(Spec(dtype::kString, {-1})), "string[?]");
  EXPECT_EQ(DescribeTensor(AnyShapeOf(dtype::kInt8)), "int8[...]");
  EXPECT_EQ(DtypeName(77), "dtype 77");
  EXPECT_EQ(DtypeName(dtype::kBfloat16), "bfloat16");
}

}  // namespace
}  // namespace millpond::tensor
