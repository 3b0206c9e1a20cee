#include "native/tf/integer_range.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "native/tf/failing_ops.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/graph.h"

namespace millpond::tf {
namespace {

using tensorflow::NodeDef;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

NodeDef Definition(const char* op, const char* type_name, tensorflow::DataType type) {
  NodeDef definition;
  definition.set_name("node");
  definition.set_op(op);
  (*definition.mutable_attr())[type_name].set_type(type);
  return definition;
}

// The range of a node whose inputs have `ranges`, and of which the row analysis knows `value`.
IntegerRange RangeFor(const NodeDef& definition, const std::vector<IntegerRange>& ranges,
                      const RowValue& value = {}) {
  tensorflow::Graph graph(tensorflow::OpRegistry::Global());
  absl::Status added;
  const tensorflow::Node* const node = graph.AddNode(definition, &added);
  EXPECT_TRUE(added.ok()) << added;
  return RangeOf(
      *node, [&](int input) { return ranges[input]; },
      [&](int) -> const RowValue& { return value; });
}

void ExpectRange(const IntegerRange& range, int64_t least, int64_t largest) {
  EXPECT_EQ(range.least, least);
  EXPECT_EQ(range.largest, largest);
}

NodeDef Long(const char* op) { return Definition(op, "T", tensorflow::DT_INT64); }
NodeDef Int(const char* op) { return Definition(op, "T", tensorflow::DT_INT32); }

TEST(IntegerRange, ARemainderIsBelowTheDivisor) {
  ExpectRange(RangeFor(Long("FloorMod"), {{}, {5, 7}}), 0, 6);
  ExpectRange(RangeFor(Long("FloorMod"), {{}, {-7, 7}}), kMin, kMax);
}

TEST(IntegerRange, BoundsAreKept) {
  ExpectRange(RangeFor(Long("Maximum"), {{}, {0, 0}}), 0, kMax);
  ExpectRange(RangeFor(Long("Minimum"), {{0, kMax}, {9, 9}}), 0, 9);
  ExpectRange(RangeFor(Long("ClipByValue"), {{}, {0, 0}, {9, 9}}), 0, 9);
  ExpectRange(RangeFor(Long("AddV2"), {{0, 9}, {1, 1}}), 1, 10);
}

TEST(IntegerRange, ASumThatBeginsAnewHasNoRange) {
  ExpectRange(RangeFor(Long("AddV2"), {{0, kMax}, {1, 1}}), kMin, kMax);
  const int64_t int_max = std::numeric_limits<int32_t>::max();
  ExpectRange(RangeFor(Int("AddV2"), {{0, int_max}, {1, 1}}), kMin, kMax);
  ExpectRange(RangeFor(Int("AddV2"), {{0, int_max - 1}, {1, 1}}), 1, int_max);
}

TEST(IntegerRange, ACastKeepsWhatFits) {
  NodeDef cast = Definition("Cast", "SrcT", tensorflow::DT_INT64);
  (*cast.mutable_attr())["DstT"].set_type(tensorflow::DT_INT32);
  ExpectRange(RangeFor(cast, {{0, 9}}), 0, 9);
  ExpectRange(RangeFor(cast, {{0, int64_t{1} << 40}}), kMin, kMax);
  (*cast.mutable_attr())["SrcT"].set_type(tensorflow::DT_FLOAT);
  ExpectRange(RangeFor(cast, {{0, 9}}), kMin, kMax);
}

TEST(IntegerRange, AHashIsBelowTheBuckets) {
  NodeDef hash = Definition("StringToHashBucketFast", "unused", tensorflow::DT_INT64);
  hash.clear_attr();
  (*hash.mutable_attr())["num_buckets"].set_i(50);
  ExpectRange(RangeFor(hash, {{}}), 0, 49);
}

TEST(IntegerRange, KnownElementsAreTheRange) {
  RowValue value;
  EXPECT_FALSE(RangeOf(value).IsBounded());
  value.elements = {Quantity::Known(3), Quantity::Known(-2)};
  ExpectRange(RangeOf(value), -2, 3);
  value.elements->push_back(Quantity::Rows());
  EXPECT_FALSE(RangeOf(value).IsBounded());
}

TEST(IntegerRange, AConstantOfAnyTypeIsKnown) {
  NodeDef constant = Definition("Const", "dtype", tensorflow::DT_UINT8);
  tensorflow::Tensor bits(tensorflow::DT_UINT8, {2});
  bits.flat<uint8_t>()(0) = 4;
  bits.flat<uint8_t>()(1) = 200;
  bits.AsProtoTensorContent((*constant.mutable_attr())["value"].mutable_tensor());
  ExpectRange(RangeFor(constant, {}), 4, 200);
}

TEST(IntegerRange, ASmallTypeKeepsWhatItHolds) {
  const NodeDef sum = Definition("AddV2", "T", tensorflow::DT_UINT8);
  ExpectRange(RangeFor(sum, {{0, 254}, {1, 1}}), 1, 255);
  ExpectRange(RangeFor(sum, {{0, 255}, {1, 1}}), kMin, kMax);
  ExpectRange(RangeFor(Definition("AddV2", "T", tensorflow::DT_UINT64), {{0, 1}, {1, 1}}), kMin,
              kMax);
}

TEST(FailingOps, OnlyIntegersLoseBits) {
  EXPECT_TRUE(LosesBits(Int("Mean")));
  EXPECT_FALSE(LosesBits(Definition("Mean", "T", tensorflow::DT_FLOAT)));
  EXPECT_TRUE(LosesBits(Int("ResizeNearestNeighbor")));
  EXPECT_FALSE(LosesBits(Definition("ResizeNearestNeighbor", "T", tensorflow::DT_UINT8)));
  EXPECT_FALSE(LosesBits(Int("Sum")));
}

TEST(FailingOps, OnlyDivisionsOfIntegersFail) {
  EXPECT_TRUE(ChecksSecondOperand(Long("FloorMod")));
  EXPECT_FALSE(ChecksSecondOperand(Definition("FloorMod", "T", tensorflow::DT_FLOAT)));
  EXPECT_FALSE(ChecksSecondOperand(Long("AddV2")));
}

}  // namespace
}  // namespace millpond::tf
