#include "native/tensor/tensor_access.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "native/tensor/dtype.h"
#include "native/tensor/tensor_rows.h"
#include "native/tf/tensor_storage.h"
#include "tests/native/tensor_access_contract.h"
#include "tests/native/tensors.h"

namespace millpond::tensor {
namespace {

using tensorflow::tstring;
using testing::IsSame;
using testing::Vector;

class TensorAccessTest : public ::testing::Test {
 protected:
  TensorAccessTest() { list_.Reset(2); }

  TensorList list_;
};

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
