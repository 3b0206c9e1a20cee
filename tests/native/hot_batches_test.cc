#include "native/servable/hot_batches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millpond::servable {
namespace {

using Names = std::vector<std::string>;

tensor::Signature SignatureOf(const std::string& name) {
  tensor::Signature signature;
  signature.name = name;
  signature.outputs.resize(2);
  signature.outputs[0].name = "y";
  signature.outputs[1].name = "z";
  return signature;
}

class HotBatchesTest : public ::testing::Test {
 protected:
  void Record(const tensor::OutputSet& outputs, int64_t rows) {
    hot_.Record({&a_}, &outputs, rows);
  }

  const tensor::Signature a_ = SignatureOf("a");
  const tensor::Signature b_ = SignatureOf("b");
  const tensor::OutputSet all_ = tensor::OutputSet::All(2);
  HotBatches hot_;
};

TEST_F(HotBatchesTest, FrequentBatchComesFirst) {
  Record(all_, 3);
  Record(all_, 5);
  Record(all_, 5);
  const auto batches = hot_.Batches();
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].signatures, Names{"a"});
  EXPECT_EQ(batches[0].outputs, Names{});
  EXPECT_EQ(batches[0].rows, 5);
  EXPECT_EQ(batches[0].run_count, 2);
  EXPECT_EQ(batches[1].rows, 3);
}

TEST_F(HotBatchesTest, SetsOfOutputsAreKindsOfTheirOwn) {
  tensor::OutputSet only_z(2);
  only_z.Add(1);
  Record(all_, 3);
  Record(only_z, 3);
  const auto batches = hot_.Batches();
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[1].outputs, Names{"z"});
}

TEST_F(HotBatchesTest, SeveralSignaturesKeepTheirOrder) {
  hot_.Record({&b_, &a_}, nullptr, 4);
  const auto batches = hot_.Batches();
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].signatures, (Names{"b", "a"}));
  EXPECT_EQ(batches[0].outputs, Names{});
}

TEST_F(HotBatchesTest, RarestKindMakesRoom) {
  for (int64_t rows = 1; rows <= static_cast<int64_t>(HotBatches::kKeptMax); ++rows) {
    Record(all_, rows);
    if (rows != 7) Record(all_, rows);
  }
  Record(all_, 1'000);
  const auto batches = hot_.Batches();
  EXPECT_EQ(batches.size(), HotBatches::kKeptMax);
  int64_t run_count_of_new = 0;
  for (const HotBatch& batch : batches) {
    EXPECT_NE(batch.rows, 7);
    if (batch.rows == 1'000) run_count_of_new = batch.run_count;
  }
  EXPECT_EQ(run_count_of_new, 2);
}

}  // namespace
}  // namespace millpond::servable
