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
                   {Magnitude{{magnitude}, 1, magnitude}}, kRoundingTolerance)
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

// Rows of `width` doubles.
TensorList RowsOf(int64_t width, const std::vector<double>& values) {
  const auto rows = static_cast<int64_t>(values.size()) / width;
  return TensorListOf(NumberTensor<double>(dtype::kDouble, {rows, width}, values));
}

Magnitude MagnitudeOf(const Magnitudes& magnitudes, const TensorList& compared) {
  return magnitudes.Of({"y"}, compared).front();
}

// Returns how far apart two rows are beside what was noted.
Difference::Size SizeBeside(const Magnitudes& magnitudes, const TensorList& a,
                            const TensorList& b) {
  return Compare(a, b, magnitudes.Of({"y"}, a), kRoundingTolerance).size;
}

TEST(Magnitudes, EachColumnHasItsOwn) {
  Magnitudes magnitudes;
  magnitudes.Note({"y"}, RowsOf(2, {1e6, 0.5, -1e6, 0.5}));
  const Magnitude magnitude = MagnitudeOf(magnitudes, RowsOf(2, {1e6, 0.1}));
  EXPECT_EQ(magnitude.columns, (std::vector<double>{1e6, 0.5}));
  EXPECT_EQ(magnitudes.Of({"name"}, TensorListOf(StringTensor({1}, {"a"}))).front().columns.size(),
            0U);
}

// Mixed scores beside ids of a million were within the tolerance of the ids.
TEST(Magnitudes, ScoreBesideALargeIdIsComparedByItself) {
  Magnitudes magnitudes;
  magnitudes.Note({"y"}, RowsOf(2, {1e6, 0.5, 1e6, 0.7}));
  EXPECT_NE(SizeBeside(magnitudes, RowsOf(2, {1e6, 0.5}), RowsOf(2, {1e6, 0.6})),
            Difference::Size::kNone);
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(2, {1e6, 0.5}), RowsOf(2, {1e6, 0.500001})),
            Difference::Size::kNone);
}

TEST(Magnitudes, ScoreNearZeroIsRoundedLikeTheOthers) {
  Magnitudes magnitudes;
  magnitudes.Note({"y"}, RowsOf(1, {2, -2.1, 1.9, 1e-6}));
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(1, {1e-3}), RowsOf(1, {1.003e-3})),
            Difference::Size::kNone);
  // Beyond kLargestFactor, one run more tells rounding from mixing.
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(1, {1e-6}), RowsOf(1, {4e-6})), Difference::Size::kSmall);
}

// A unit that is mostly off is a sum that cancels out: one run more tells rounding from mixing.
TEST(Magnitudes, DifferenceWithinTheRoundingOfTheRowIsSmall) {
  Magnitudes magnitudes;
  magnitudes.Note({"y"}, RowsOf(2, {2, 0, 2, 0}));
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(2, {2, 0}), RowsOf(2, {2, 1e-6})),
            Difference::Size::kSmall);
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(2, {2, 0}), RowsOf(2, {2, 0.1})),
            Difference::Size::kLarge);
}

TEST(Magnitudes, OneRowOfHugeValuesBlindsNoComparison) {
  Magnitudes magnitudes;
  for (int i = 0; i < 4; ++i) {
    magnitudes.Note({"y"}, RowsOf(1, {1}));
    if (i == 2) magnitudes.Note({"y"}, RowsOf(1, {1e30}));
  }
  EXPECT_EQ(MagnitudeOf(magnitudes, RowsOf(1, {1})).columns, (std::vector<double>{1}));
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(1, {1}), RowsOf(1, {1.5})), Difference::Size::kLarge);
}

TEST(Magnitudes, FloodOfHugeValuesEndsWithIt) {
  Magnitudes magnitudes;
  magnitudes.Note({"y"}, RowsOf(1, std::vector<double>(100, 1e30)));
  EXPECT_EQ(MagnitudeOf(magnitudes, RowsOf(1, {2})).columns,
            (std::vector<double>{2 * Magnitudes::kLargestFactor}));
  magnitudes.Note({"y"}, RowsOf(1, std::vector<double>(Magnitudes::kRowsKept, 2)));
  EXPECT_EQ(MagnitudeOf(magnitudes, RowsOf(1, {2})).columns, (std::vector<double>{2}));
}

TEST(Magnitudes, LargestDoublesLeaveThemFinite) {
  Magnitudes magnitudes;
  const TensorList huge = RowsOf(2, {1.7e308, 1.7e308, INFINITY, NAN});
  magnitudes.Note({"y"}, huge);
  const Magnitude magnitude = MagnitudeOf(magnitudes, huge);
  for (const double each : magnitude.columns) EXPECT_TRUE(std::isfinite(each)) << each;
  EXPECT_TRUE(std::isfinite(magnitude.row));
  EXPECT_EQ(SizeBeside(magnitudes, RowsOf(2, {1.7e308, 1}), RowsOf(2, {-1.7e308, 1})),
            Difference::Size::kLarge);
}

TEST(Magnitudes, WideRowHasABoundedCountOfColumns) {
  Magnitudes magnitudes;
  const TensorList wide = RowsOf(10'000, std::vector<double>(20'000, 3));
  magnitudes.Note({"y"}, wide);
  const Magnitude magnitude = MagnitudeOf(magnitudes, wide);
  EXPECT_EQ(magnitude.column_elements, 3);
  EXPECT_EQ(magnitude.columns, std::vector<double>(3'334, 3));
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
