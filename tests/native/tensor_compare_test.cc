#include "native/tensor/tensor_compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"
#include "native/tensor/small_float.h"
#include "tests/native/plain_servable.h"

namespace millpond::tensor {
namespace {

using testing::NumberTensor;
using testing::OpaqueTensor;
using testing::StringTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool AreClose(OpaqueTensor a, OpaqueTensor b) {
  TensorList list_a;
  TensorList list_b;
  list_a.storage().tensors = {std::move(a)};
  list_b.storage().tensors = {std::move(b)};
  return AreTensorsClose(list_a, list_b);
}

// Returns a vector of `dtype`, one of the floating dtypes.
OpaqueTensor Vector(int dtype, const std::vector<double>& values) {
  const std::vector<int64_t> dims = {static_cast<int64_t>(values.size())};
  if (dtype == dtype::kDouble) return NumberTensor(dtype, dims, values);
  if (dtype == dtype::kFloat) {
    return NumberTensor(dtype, dims, std::vector<float>(values.begin(), values.end()));
  }
  std::vector<uint16_t> bits;
  for (const double value : values) {
    bits.push_back(dtype == dtype::kHalf ? Half::FromDouble(value) : Bfloat16::FromDouble(value));
  }
  return NumberTensor(dtype, dims, bits);
}

class FloatCompare : public ::testing::TestWithParam<int> {
 protected:
  static double Tolerance() {
    switch (GetParam()) {
      case dtype::kHalf:
        return 4.0 / 1024;
      case dtype::kBfloat16:
        return 4.0 / 128;
      default:
        return kRoundingTolerance;
    }
  }
  static bool AreCloseVectors(const std::vector<double>& a, const std::vector<double>& b) {
    const bool are_close = AreClose(Vector(GetParam(), a), Vector(GetParam(), b));
    EXPECT_EQ(AreClose(Vector(GetParam(), b), Vector(GetParam(), a)), are_close);
    return are_close;
  }
};

TEST_P(FloatCompare, DifferencesAreRelativeToTheValues) {
  for (const double value : {1.0, -1.0, 1024.0, -0.0009765625}) {
    EXPECT_TRUE(AreCloseVectors({value}, {value}));
    EXPECT_TRUE(AreCloseVectors({value}, {value * (1 + Tolerance() / 2)})) << value;
    EXPECT_FALSE(AreCloseVectors({value}, {value * (1 + 2 * Tolerance())})) << value;
    EXPECT_FALSE(AreCloseVectors({value}, {-value})) << value;
    EXPECT_FALSE(AreCloseVectors({value}, {0})) << value;
  }
}

TEST_P(FloatCompare, OneDifferenceAmongEqualValuesIsADifference) {
  std::vector<double> values(1'000, 1.0);
  const std::vector<double> same = values;
  EXPECT_TRUE(AreCloseVectors(same, values));
  values[999] = 1.5;
  EXPECT_FALSE(AreCloseVectors(same, values));
}

TEST_P(FloatCompare, TinyValuesAreRestsOfTheLargestOne) {
  // Below 1/1000 of the largest value, a difference counts beside that.
  const double rest = 1e-3 * Tolerance();
  EXPECT_TRUE(AreCloseVectors({1, 0}, {1, rest / 2}));
  EXPECT_FALSE(AreCloseVectors({1, 0}, {1, 4 * rest}));
  EXPECT_FALSE(AreCloseVectors({0}, {rest / 2}));
}

TEST_P(FloatCompare, NanEqualsNanOnly) {
  EXPECT_TRUE(AreCloseVectors({kNan, 1}, {kNan, 1}));
  EXPECT_FALSE(AreCloseVectors({kNan}, {1}));
  EXPECT_FALSE(AreCloseVectors({kNan}, {kInf}));
}

TEST_P(FloatCompare, InfinityEqualsItselfOnly) {
  EXPECT_TRUE(AreCloseVectors({kInf, -kInf}, {kInf, -kInf}));
  EXPECT_FALSE(AreCloseVectors({kInf}, {-kInf}));
  EXPECT_FALSE(AreCloseVectors({kInf}, {1}));
  EXPECT_FALSE(AreCloseVectors({1}, {kInf}));
  // An infinite value is no scale for the others.
  EXPECT_FALSE(AreCloseVectors({kInf, 1}, {kInf, 2}));
}

INSTANTIATE_TEST_SUITE_P(EachDtype, FloatCompare,
                         ::testing::Values(dtype::kFloat, dtype::kDouble, dtype::kHalf,
                                           dtype::kBfloat16));

TEST(TensorCompare, IntegersAndBoolsAreEqualOrNot) {
  const auto ints = [](int32_t last) {
    return NumberTensor<int32_t>(dtype::kInt32, {2}, {1'000'000'000, last});
  };
  EXPECT_TRUE(AreClose(ints(7), ints(7)));
  EXPECT_FALSE(AreClose(ints(7), ints(8)));
  EXPECT_FALSE(AreClose(NumberTensor<uint8_t>(dtype::kBool, {1}, {0}),
                        NumberTensor<uint8_t>(dtype::kBool, {1}, {1})));
}

TEST(TensorCompare, StringsAreEqualOrNot) {
  EXPECT_TRUE(AreClose(StringTensor({2}, {"a", ""}), StringTensor({2}, {"a", ""})));
  EXPECT_FALSE(AreClose(StringTensor({2}, {"a", "b"}), StringTensor({2}, {"a", "c"})));
}

TEST(TensorCompare, ShapesAndDtypesAreCompared) {
  EXPECT_FALSE(AreClose(NumberTensor<float>(dtype::kFloat, {2}, {1, 2}),
                        NumberTensor<float>(dtype::kFloat, {2, 1}, {1, 2})));
  EXPECT_FALSE(AreClose(NumberTensor<float>(dtype::kFloat, {1}, {0}),
                        NumberTensor<int32_t>(dtype::kInt32, {1}, {0})));
}

TEST(TensorCompare, OtherElementsAreNeverClose) {
  constexpr int kComplex64 = 8;
  const OpaqueTensor tensor = {std::string(8, '\0'), kComplex64, {1}, {}};
  EXPECT_FALSE(AreClose(tensor, tensor));
}

TEST(TensorCompare, EveryTensorOfTheListsCounts) {
  TensorList a;
  TensorList b;
  a.storage().tensors = {StringTensor({1}, {"same"}), StringTensor({1}, {"a"})};
  b.storage().tensors = {StringTensor({1}, {"same"}), StringTensor({1}, {"b"})};
  EXPECT_FALSE(AreTensorsClose(a, b));
  b.storage().tensors.pop_back();
  EXPECT_FALSE(AreTensorsClose(a, b));
  a.storage().tensors.pop_back();
  EXPECT_TRUE(AreTensorsClose(a, b));
}

}  // namespace
}  // namespace millpond::tensor
