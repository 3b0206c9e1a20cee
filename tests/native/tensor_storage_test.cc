#include "native/tf/tensor_storage.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "tensorflow/core/framework/tensor.h"
#include "tests/native/tensors.h"

namespace millpond::tensor {
namespace {

TEST(TensorList, ResetFreesWhatItHeld) {
  TensorList list;
  EXPECT_EQ(list.size(), 0);
  list.Reset(2);
  const tensorflow::Tensor kept = testing::Vector<float>({1, 2});
  list.storage().tensors[1] = kept;
  EXPECT_FALSE(kept.RefCountIsOne());
  list.Reset(3);
  EXPECT_TRUE(kept.RefCountIsOne());
  EXPECT_EQ(list.size(), 3);
}

TEST(TensorList, MovesItsTensors) {
  TensorList list;
  list.Reset(1);
  list.storage().tensors[0] = testing::Scalar<int64_t>(7);
  TensorList moved = std::move(list);
  ASSERT_EQ(moved.size(), 1);
  EXPECT_EQ(moved.storage().tensors[0].scalar<int64_t>()(), 7);
}

}  // namespace
}  // namespace millpond::tensor
