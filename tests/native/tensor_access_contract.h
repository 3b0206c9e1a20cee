#pragma once

// The contract of tensor_access.h: one suite, included by a test of each definition of the tensors
// (tensor_list.h), which are TensorFlow's and the tests' own.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/limits.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::tensor {

class TensorAccessContract : public ::testing::Test {
 protected:
  using Integers = std::vector<int32_t>;

  TensorAccessContract() { list_.Reset(2); }

  int32_t* Numbers() { return static_cast<int32_t*>(MutableElements(1, &list_)); }
  Integers Elements() { return {Numbers(), Numbers() + ViewTensor(list_, 1).element_count}; }
  std::vector<std::string> Strings() {
    std::vector<std::string> strings;
    for (int64_t i = 0; i < ViewTensor(list_, 1).element_count; ++i) {
      strings.emplace_back(StringAt(list_, 1, i));
    }
    return strings;
  }
  base::Code Make(int dtype, const std::vector<int64_t>& dims) {
    return MakeTensor(dtype, dims, 1, &list_).code();
  }

  TensorList list_;
};

TEST_F(TensorAccessContract, NumericTensorIsMadeWrittenAndViewed) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2, 2}, 1, &list_).ok());
  for (int i = 0; i < 4; ++i) Numbers()[i] = 10 + i;
  const TensorView view = ViewTensor(list_, 1);
  EXPECT_EQ(view.dtype, dtype::kInt32);
  EXPECT_EQ(view.dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(view.element_count, 4);
  EXPECT_EQ(view.bytes, std::string_view(reinterpret_cast<const char*>(Numbers()), 16));
  EXPECT_EQ(Elements(), (Integers{10, 11, 12, 13}));
  EXPECT_EQ(FirstSize(list_, 1), 2);
}

TEST_F(TensorAccessContract, StringTensorIsMadeWrittenAndRead) {
  ASSERT_TRUE(MakeTensor(dtype::kString, {3}, 1, &list_).ok());
  const std::string large(1'000, 'x');
  ASSERT_TRUE(SetString(1, 0, large, &list_).ok());
  std::fill_n(ResizeString(1, 2, 3, &list_).value(), 3, '\0');
  EXPECT_EQ(Strings(), (std::vector<std::string>{large, "", std::string(3, '\0')}));
  EXPECT_TRUE(ViewTensor(list_, 1).bytes.empty());
}

TEST_F(TensorAccessContract, EmptyTensorIsViewed) {
  ASSERT_TRUE(MakeTensor(dtype::kFloat, {0, 5}, 1, &list_).ok());
  EXPECT_TRUE(ViewTensor(list_, 1).bytes.empty());
  EXPECT_EQ(ViewTensor(list_, 1).dims, (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(FirstSize(list_, 1), 0);
}

TEST_F(TensorAccessContract, ImpossibleTensorsAreRefusedWithoutMemory) {
  constexpr int kComplex64 = 8;
  constexpr int kVariant = 21;
  using base::Code;
  EXPECT_EQ(Make(dtype::kFloat, {2, -1}), Code::kInvalidArgument);
  EXPECT_EQ(Make(kVariant, {2}), Code::kInvalidArgument);
  EXPECT_EQ(Make(kComplex64, {2}), Code::kInvalidArgument);
  EXPECT_EQ(Make(777, {2}), Code::kInvalidArgument);
  EXPECT_EQ(Make(0, {2}), Code::kInvalidArgument);
  EXPECT_EQ(Make(dtype::kFloat, {INT64_MAX, 2}), Code::kInvalidArgument);
  EXPECT_EQ(Make(dtype::kFloat, std::vector<int64_t>(255, 1)), Code::kInvalidArgument);
  EXPECT_EQ(Make(dtype::kFloat, {base::kMaxTensorBytes / 4 + 1}), Code::kResourceExhausted);
  EXPECT_EQ(Make(dtype::kString, {base::kMaxTensorBytes / 8}), Code::kResourceExhausted);
}

TEST_F(TensorAccessContract, GrownTensorKeepsItsElements) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2}, 1, &list_).ok());
  Numbers()[0] = 1;
  Numbers()[1] = 2;
  ASSERT_TRUE(ExtendTensor(100, 2, 1, &list_).ok());
  Numbers()[2] = 3;
  Numbers()[3] = 4;
  ASSERT_TRUE(ShapeTensor({4}, 1, &list_).ok());
  const void* before = Numbers();
  ASSERT_TRUE(ShapeTensor({2, 1, 2}, 1, &list_).ok());
  EXPECT_EQ(Elements(), (Integers{1, 2, 3, 4}));
  EXPECT_EQ(ViewTensor(list_, 1).dims, (std::vector<int64_t>{2, 1, 2}));
  EXPECT_EQ(Numbers(), before);
}

TEST_F(TensorAccessContract, GrownTensorOfStringsKeepsThem) {
  ASSERT_TRUE(MakeTensor(dtype::kString, {2}, 1, &list_).ok());
  const std::string large(1'000, 'x');
  ASSERT_TRUE(SetString(1, 0, "a", &list_).ok());
  ASSERT_TRUE(SetString(1, 1, large, &list_).ok());
  ASSERT_TRUE(ExtendTensor(4, 2, 1, &list_).ok());
  ASSERT_TRUE(SetString(1, 2, "c", &list_).ok());
  ASSERT_TRUE(ShapeTensor({3}, 1, &list_).ok());
  EXPECT_EQ(Strings(), (std::vector<std::string>{"a", large, "c"}));
}

TEST_F(TensorAccessContract, ShapeOfMoreElementsIsRefused) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2}, 1, &list_).ok());
  EXPECT_EQ(ShapeTensor({3}, 1, &list_).code(), base::Code::kInternal);
  EXPECT_EQ(ViewTensor(list_, 1).element_count, 2);
}

TEST_F(TensorAccessContract, FailedExtensionLeavesTheTensorAsItWas) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {1}, 1, &list_).ok());
  Numbers()[0] = 7;
  EXPECT_EQ(ExtendTensor(base::kMaxTensorBytes, 1, 1, &list_).code(),
            base::Code::kResourceExhausted);
  EXPECT_EQ(Elements(), (Integers{7}));
}

TEST_F(TensorAccessContract, SharedTensorsAndRowsOutliveTheirList) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {3, 2}, 1, &list_).ok());
  for (int i = 0; i < 6; ++i) Numbers()[i] = i;
  ASSERT_TRUE(MakeTensor(dtype::kString, {3}, 0, &list_).ok());
  ASSERT_TRUE(SetString(0, 2, std::string(100, 'c'), &list_).ok());
  const TensorList all = ShareTensors(list_);
  const TensorList rows = ShareRows(list_, 1, 2);
  EXPECT_TRUE(IsSameTensor(all, 1, list_, 1));
  list_.Reset(0);
  EXPECT_EQ(ViewTensor(rows, 1).dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(ViewTensor(rows, 1).bytes, ViewTensor(all, 1).bytes.substr(8));
  EXPECT_EQ(ViewTensor(rows, 0).element_count, 2);
  EXPECT_EQ(StringAt(rows, 0, 1), std::string(100, 'c'));
  list_.Reset(1);
  ShareTensor(all, 1, 0, &list_);
  EXPECT_TRUE(IsSameTensor(list_, 0, all, 1));
}

}  // namespace millpond::tensor
