#include "native/tensor/tensor_access.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "native/base/limits.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_rows.h"
#include "native/tf/tensor_storage.h"
#include "tests/native/tensors.h"

namespace millpond::tensor {
namespace {

using base::Code;
using tensorflow::tstring;
using testing::IsSame;
using testing::Vector;

class TensorAccessTest : public ::testing::Test {
 protected:
  TensorAccessTest() { list_.Reset(2); }

  tensorflow::Tensor& tensor() { return list_.storage().tensors[1]; }
  int32_t* Numbers() { return static_cast<int32_t*>(MutableElements(1, &list_)); }

  TensorList list_;
};

TEST_F(TensorAccessTest, ANumericTensorIsMadeWrittenAndViewed) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2, 2}, 1, &list_).ok());
  for (int i = 0; i < 4; ++i) Numbers()[i] = 10 + i;
  const TensorView view = ViewTensor(list_, 1);
  EXPECT_EQ(view.dtype, dtype::kInt32);
  EXPECT_EQ(view.dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(view.element_count, 4);
  EXPECT_EQ(view.bytes, tensor().tensor_data());
  EXPECT_EQ(testing::Values<int32_t>(tensor()), (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_FALSE(list_.storage().tensors[0].IsInitialized() &&
               list_.storage().tensors[0].NumElements() > 0);
}

TEST_F(TensorAccessTest, AStringTensorIsMadeWrittenAndRead) {
  ASSERT_TRUE(MakeTensor(dtype::kString, {3}, 1, &list_).ok());
  const std::string large(1'000, 'x');
  SetString(1, 0, large, &list_);
  std::fill_n(ResizeString(1, 2, 3, &list_).value(), 3, '\0');
  EXPECT_EQ(StringAt(list_, 1, 0), large);
  EXPECT_EQ(StringAt(list_, 1, 1), "");
  EXPECT_EQ(StringAt(list_, 1, 2), std::string_view("\0\0\0", 3));
  EXPECT_TRUE(ViewTensor(list_, 1).bytes.empty());
}

TEST_F(TensorAccessTest, EveryDtypeThatIsReadAndWrittenHasTensorFlowsSize) {
  for (int dtype = 1; dtype < 64; ++dtype) {
    if (ElementBytes(dtype) == 0) continue;
    EXPECT_EQ(ElementBytes(dtype),
              tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(dtype)))
        << dtype;
    EXPECT_TRUE(MakeTensor(dtype, {3}, 1, &list_).ok());
    EXPECT_EQ(ViewTensor(list_, 1).bytes.size(), 3 * ElementBytes(dtype));
  }
}

TEST_F(TensorAccessTest, AnEmptyTensorIsViewed) {
  ASSERT_TRUE(MakeTensor(dtype::kFloat, {0, 5}, 1, &list_).ok());
  EXPECT_TRUE(ViewTensor(list_, 1).bytes.empty());
  EXPECT_EQ(ViewTensor(list_, 1).dims, (std::vector<int64_t>{0, 5}));
}

TEST_F(TensorAccessTest, ImpossibleTensorsAreRefusedWithoutMemory) {
  EXPECT_EQ(MakeTensor(dtype::kFloat, {2, -1}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(tensorflow::DT_VARIANT, {2}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(tensorflow::DT_COMPLEX64, {2}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(777, {2}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(0, {2}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(dtype::kFloat, {INT64_MAX, 2}, 1, &list_).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(dtype::kFloat, std::vector<int64_t>(255, 1), 1, &list_).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(MakeTensor(dtype::kFloat, {base::kMaxTensorBytes / 4 + 1}, 1, &list_).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(MakeTensor(dtype::kString, {base::kMaxTensorBytes / 8}, 1, &list_).code(),
            Code::kResourceExhausted);
}

TEST_F(TensorAccessTest, GrownTensorKeepsElementsWithoutACopy) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2}, 1, &list_).ok());
  Numbers()[0] = 1;
  Numbers()[1] = 2;
  ASSERT_TRUE(ExtendTensor(100, 2, 1, &list_).ok());
  Numbers()[2] = 3;
  Numbers()[3] = 4;
  const void* before = Numbers();
  ASSERT_TRUE(ShapeTensor({4}, 1, &list_).ok());
  EXPECT_TRUE(IsSame(tensor(), Vector<int32_t>({1, 2, 3, 4})));
  ASSERT_TRUE(ShapeTensor({2, 1, 2}, 1, &list_).ok());
  EXPECT_EQ(tensor().shape(), tensorflow::TensorShape({2, 1, 2}));
  EXPECT_EQ(Numbers(), before);
}

TEST_F(TensorAccessTest, AGrownTensorOfStringsKeepsThem) {
  ASSERT_TRUE(MakeTensor(dtype::kString, {2}, 1, &list_).ok());
  const std::string large(1'000, 'x');
  SetString(1, 0, "a", &list_);
  SetString(1, 1, large, &list_);
  ASSERT_TRUE(ExtendTensor(4, 2, 1, &list_).ok());
  SetString(1, 2, "c", &list_);
  ASSERT_TRUE(ShapeTensor({3}, 1, &list_).ok());
  EXPECT_EQ(testing::Values<tstring>(tensor()), (std::vector<tstring>{"a", tstring(large), "c"}));
}

TEST_F(TensorAccessTest, ShapesOfMoreElementsAreRefused) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {2}, 1, &list_).ok());
  EXPECT_EQ(ShapeTensor({3}, 1, &list_).code(), Code::kInternal);
  EXPECT_EQ(tensor().NumElements(), 2);
}

TEST_F(TensorAccessTest, AFailedExtensionLeavesTheTensorAsItWas) {
  ASSERT_TRUE(MakeTensor(dtype::kInt32, {1}, 1, &list_).ok());
  Numbers()[0] = 7;
  EXPECT_EQ(ExtendTensor(base::kMaxTensorBytes, 1, 1, &list_).code(), Code::kResourceExhausted);
  EXPECT_TRUE(IsSame(tensor(), Vector<int32_t>({7})));
}

// --- Rows of a batch's result ---

TEST_F(TensorAccessTest, SharedRowsAreThoseOfEachTensorAndAreNotCopied) {
  tensorflow::Tensor numbers(tensorflow::DT_FLOAT, {3, 3});
  for (int i = 0; i < 9; ++i) numbers.flat<float>()(i) = static_cast<float>(i);
  list_.storage().tensors = {numbers, Vector<tstring>({"a", "b", "c"})};
  const TensorList rows = ShareRows(list_, 1, 2);
  EXPECT_EQ(ViewTensor(rows, 0).dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(ViewTensor(rows, 0).bytes.data(),
            static_cast<const char*>(numbers.data()) + 3 * sizeof(float));
  EXPECT_EQ(ViewTensor(rows, 1).element_count, 2);
  EXPECT_EQ(StringAt(rows, 1, 0), "b");
  EXPECT_EQ(&*StringAt(rows, 1, 1).begin(), &*StringAt(list_, 1, 2).begin());
}

TEST_F(TensorAccessTest, SharedRowsOutliveTheirList) {
  list_.storage().tensors = {Vector<tstring>({std::string(100, 'a'), std::string(100, 'b')})};
  const TensorList rows = ShareRows(list_, 1, 1);
  list_.Reset(0);
  EXPECT_EQ(StringAt(rows, 0, 0), std::string(100, 'b'));
}

// A row that begins at no multiple of what kernels want: it is encoded, and copied for a run.
TEST_F(TensorAccessTest, UnalignedRowsAreEncodedAndJoined) {
  for (const int dtype : {dtype::kFloat, dtype::kDouble, dtype::kInt8, dtype::kHalf}) {
    const auto of_tensorflow = static_cast<tensorflow::DataType>(dtype);
    tensorflow::Tensor numbers(of_tensorflow, {5, 3});
    const size_t row_bytes = 3 * ElementBytes(dtype);
    auto* const bytes = static_cast<char*>(numbers.data());
    for (size_t i = 0; i < 5 * row_bytes; ++i) bytes[i] = static_cast<char>(i % 60);
    list_.storage().tensors = {numbers};
    const TensorList rows = ShareRows(list_, 1, 1);
    EXPECT_FALSE(rows.storage().tensors[0].IsAligned());
    tensorflow::Tensor own(of_tensorflow, {1, 3});
    std::memcpy(own.data(), bytes + row_bytes, row_bytes);
    for (const auto encoding : {TensorEncoding::kTypedFields, TensorEncoding::kTensorContent}) {
      EXPECT_TRUE(IsSame(testing::ParseTensor(testing::Encode(rows, 0, encoding)), own)) << dtype;
    }
    TensorList joined;
    ASSERT_TRUE(JoinRows({{&rows, 0, 1}, {&list_, 2, 1}}, LayoutOf(rows), 2, &joined).ok());
    EXPECT_TRUE(joined.storage().tensors[0].IsAligned());
    EXPECT_EQ(ViewTensor(joined, 0).bytes,
              ViewTensor(list_, 0).bytes.substr(row_bytes, 2 * row_bytes));
  }
}

TEST_F(TensorAccessTest, RowsOfStringsAreEncodedAndJoined) {
  list_.storage().tensors = {Vector<tstring>({"a", std::string(1'000, 'b'), ""})};
  const TensorList rows = ShareRows(list_, 1, 2);
  const tensorflow::Tensor own = Vector<tstring>({std::string(1'000, 'b'), ""});
  EXPECT_TRUE(
      IsSame(testing::ParseTensor(testing::Encode(rows, 0, TensorEncoding::kTypedFields)), own));
  TensorList joined;
  ASSERT_TRUE(JoinRows({{&rows, 1, 1}, {&rows, 0, 1}}, LayoutOf(rows), 2, &joined).ok());
  EXPECT_TRUE(IsSame(joined.storage().tensors[0], Vector<tstring>({"", std::string(1'000, 'b')})));
}

// In memory of the request allocator, which is not cleared.
TEST_F(TensorAccessTest, JoinedRowsArePaddedWithZeros) {
  list_.storage().tensors = {Vector<float>({1, 2})};
  (void)list_.storage().tensors[0].CopyFrom(list_.storage().tensors[0], {1, 2});
  RowLayout layout = LayoutOf(list_);
  layout.columns[0].dims = {4};
  for (int i = 0; i < 20; ++i) {
    TensorList joined;
    ASSERT_TRUE(JoinRows({{&list_, 0, 1}}, layout, 2, &joined).ok());
    EXPECT_EQ(testing::Values<float>(joined.storage().tensors[0]),
              (std::vector<float>{1, 2, 0, 0, 1, 2, 0, 0}));
    std::memset(MutableElements(0, &joined), 0x55, 8 * sizeof(float));
  }
}

}  // namespace
}  // namespace millpond::tensor
