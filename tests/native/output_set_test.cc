#include "native/tensor/output_set.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <set>

namespace millpond::tensor {
namespace {

// Around the sizes of a word.
class OutputSetOf : public ::testing::TestWithParam<size_t> {};

TEST_P(OutputSetOf, HoldsAndRanksAddedOutputs) {
  std::mt19937 rng(7);
  OutputSet outputs(GetParam());
  std::set<size_t> expected;
  for (size_t i = 0; i < GetParam(); ++i) {
    if (rng() % 2 == 0) expected.insert(i);
  }
  for (const size_t index : expected) outputs.Add(index);
  for (const size_t index : expected) outputs.Add(index);
  EXPECT_EQ(outputs.size(), expected.size());
  size_t rank = 0;
  for (size_t i = 0; i < GetParam(); ++i) {
    ASSERT_EQ(outputs.Contains(i), expected.count(i) == 1) << i;
    ASSERT_EQ(outputs.Rank(i), rank) << i;
    if (expected.count(i) == 1) rank += 1;
  }
}

TEST_P(OutputSetOf, AllEqualsTheSetOfAllAdded) {
  OutputSet outputs(GetParam());
  for (size_t i = 0; i < GetParam(); ++i) {
    EXPECT_FALSE(outputs.IsAll());
    outputs.Add(i);
  }
  EXPECT_TRUE(outputs.IsAll());
  EXPECT_TRUE(outputs == OutputSet::All(GetParam()));
  EXPECT_EQ(outputs.Hash(), OutputSet::All(GetParam()).Hash());
}

TEST_P(OutputSetOf, SetsThatDifferInOneOutputDiffer) {
  std::set<uint64_t> hashes;
  for (size_t i = 0; i < GetParam(); ++i) {
    OutputSet one(GetParam());
    one.Add(i);
    EXPECT_FALSE(one == OutputSet(GetParam()));
    hashes.insert(one.Hash());
  }
  EXPECT_EQ(hashes.size(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(AroundAWord, OutputSetOf,
                         ::testing::Values(1, 2, 63, 64, 65, 127, 128, 129, 1'000));

TEST(OutputSet, OfASignatureWithoutOutputsIsAllAndEmpty) {
  EXPECT_TRUE(OutputSet().IsAll());
  EXPECT_EQ(OutputSet::All(0).size(), 0);
  EXPECT_TRUE(OutputSet() == OutputSet::All(0));
}

}  // namespace
}  // namespace millpond::tensor
