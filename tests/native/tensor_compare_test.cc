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

TensorList TensorListOf(OpaqueTensor tensor) {
  TensorList list;
  list.storage().tensors = {std::move(tensor)};
  return list;
}

bool AreTensorsClose(const TensorList& a, const TensorList& b) {
  return Compare(a, b, {}, kRoundingTolerance).size == Difference::Size::kNone;
}

bool AreClose(OpaqueTensor a, OpaqueTensor b) {
  return AreTensorsClose(TensorListOf(std::move(a)), TensorListOf(std::move(b)));
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

TEST_P(FloatCompare, MagnitudeOfWhatWasSeenIsTheScaleOfSmallValues) {
  const auto size = [](double a, double b, double magnitude) {
    return Compare(TensorListOf(Vector(GetParam(), {a})), TensorListOf(Vector(GetParam(), {b})),
                   {magnitude}, kRoundingTolerance)
        .size;
  };
  const double rest = Tolerance() / 2;
  EXPECT_EQ(size(0, rest, 0), Difference::Size::kLarge);
  EXPECT_EQ(size(0, rest, 1), Difference::Size::kNone);
  EXPECT_EQ(size(0, 4 * rest, 1), Difference::Size::kSmall);
  EXPECT_EQ(size(0, 1, 1), Difference::Size::kLarge);
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

TEST(TensorCompare, DifferenceHasItsPlaceAndFigures) {
  const auto of = [](double last) {
    return TensorListOf(
        NumberTensor<float>(dtype::kFloat, {2, 2}, {1, 2, 3, static_cast<float>(last)}));
  };
  const Difference difference = Compare(of(4), of(4.5), {}, kRoundingTolerance);
  EXPECT_EQ(difference.size, Difference::Size::kLarge);
  EXPECT_EQ(Describe(difference, "y", "a batch of 8 rows"),
            "output 'y', row 1: 4.5 in a batch of 8 rows, 4 alone (tolerance 4.5e-05)");
}

TEST(TensorCompare, ToleranceMaySetWhatIsNoDifference) {
  const TensorList a = TensorListOf(NumberTensor<float>(dtype::kFloat, {1}, {1}));
  const TensorList b = TensorListOf(NumberTensor<float>(dtype::kFloat, {1}, {1.01F}));
  EXPECT_EQ(Compare(a, b, {}, kRoundingTolerance).size, Difference::Size::kLarge);
  EXPECT_EQ(Compare(a, b, {}, 0.1).size, Difference::Size::kNone);
  EXPECT_FALSE(AreTensorsEqual(a, b));
  EXPECT_TRUE(AreTensorsEqual(a, a));
}

TEST(TensorCompare, MagnitudesAreMeansOfAllThatWasNoted) {
  Magnitudes magnitudes;
  const auto note = [&](std::vector<float> values) {
    const auto size = static_cast<int64_t>(values.size());
    return magnitudes.Note({"y"}, TensorListOf(NumberTensor<float>(dtype::kFloat, {size}, values)));
  };
  EXPECT_EQ(note({-1, 3}), (std::vector<double>{2}));
  EXPECT_EQ(note({8, 4, INFINITY}), (std::vector<double>{4}));
  EXPECT_EQ(magnitudes.Note({"name"}, TensorListOf(StringTensor({1}, {"a"}))),
            (std::vector<double>{0}));
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
