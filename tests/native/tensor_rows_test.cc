#include "native/tensor/tensor_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/base/limits.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"
#include "tests/native/plain_servable.h"

namespace millpond::tensor {
namespace {

using testing::NumberTensor;
using testing::OpaqueTensor;
using testing::StringTensor;

using Dims = std::vector<int64_t>;

TensorList ListOf(std::vector<OpaqueTensor> tensors) {
  TensorList list;
  list.storage().tensors = std::move(tensors);
  return list;
}

OpaqueTensor Floats(const Dims& dims, const std::vector<float>& values) {
  return NumberTensor(dtype::kFloat, dims, values);
}

int64_t Product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// --- CountRows, CountBytes, RowLayout ---

TEST(CountRows, IsTheFirstDimensionThatAllTensorsShare) {
  EXPECT_EQ(CountRows(ListOf({Floats({2, 3}, {1, 2, 3, 4, 5, 6})})), 2);
  EXPECT_EQ(CountRows(ListOf({Floats({2}, {1, 2}), StringTensor({2, 1}, {"a", "b"})})), 2);
  EXPECT_EQ(CountRows(ListOf({Floats({3, 0}, {})})), 3);
}

TEST(CountRows, TensorsWithoutRowsInCommonHaveNone) {
  EXPECT_FALSE(CountRows(ListOf({})));
  EXPECT_FALSE(CountRows(ListOf({Floats({}, {1})})));
  EXPECT_FALSE(CountRows(ListOf({Floats({0, 4}, {})})));
  EXPECT_FALSE(CountRows(ListOf({Floats({2}, {1, 2}), Floats({1}, {1})})));
  EXPECT_FALSE(CountRows(ListOf({Floats({2}, {1, 2}), Floats({}, {1})})));
}

TEST(CountRows, ElementsThatAreNeitherNumbersNorStringsHaveNone) {
  constexpr int kComplex64 = 8;
  EXPECT_FALSE(CountRows(ListOf({{std::string(16, '\0'), kComplex64, {2}, {}}})));
  EXPECT_FALSE(CountRows(ListOf({{"a TensorProto", 0, {}, {}}})));
}

TEST(CountBytes, AreThoseOfNumbersAndOfTheTextsOfStrings) {
  EXPECT_EQ(CountBytes(ListOf({})), 0);
  EXPECT_EQ(CountBytes(ListOf({Floats({2}, {1, 2}), StringTensor({2}, {"abc", ""})})), 8 + 3);
}

TEST(RowLayout, IsEqualForEqualDtypesAndDimensionsAfterTheFirst) {
  const RowLayout layout = LayoutOf(ListOf({Floats({1, 2}, {1, 2})}));
  EXPECT_TRUE(layout == LayoutOf(ListOf({Floats({3, 2}, {1, 2, 3, 4, 5, 6})})));
  EXPECT_FALSE(layout == LayoutOf(ListOf({Floats({2, 1}, {1, 2})})));
  EXPECT_FALSE(layout == LayoutOf(ListOf({NumberTensor<int32_t>(dtype::kInt32, {1, 2}, {1, 2})})));
  EXPECT_FALSE(layout == LayoutOf(ListOf({})));
}

TEST(RowLayout, SizesMayBePaddedButNotRanksAndDtypes) {
  RowLayout layout = LayoutOf(ListOf({Floats({1, 2, 5}, std::vector<float>(10))}));
  const RowLayout other = LayoutOf(ListOf({Floats({1, 3, 4}, std::vector<float>(12))}));
  ASSERT_TRUE(layout.IsPaddable(other));
  EXPECT_FALSE(layout.IsPaddable(LayoutOf(ListOf({Floats({1, 2}, {1, 2})}))));
  EXPECT_FALSE(layout.IsPaddable(
      LayoutOf(ListOf({NumberTensor<int32_t>(dtype::kInt32, {1, 2, 1}, {1, 2})}))));
  EXPECT_FALSE(layout.IsPaddable(LayoutOf(ListOf({}))));
  layout.Widen(other);
  EXPECT_EQ(layout.columns[0].dims, (Dims{3, 5}));
}

// --- JoinRows ---

TEST(JoinRows, PlacesTheRowsOfAllPartsInOrder) {
  const TensorList first = ListOf({Floats({2, 2}, {1, 2, 3, 4})});
  const TensorList second = ListOf({Floats({3, 2}, {5, 6, 7, 8, 9, 10})});
  TensorList joined;
  ASSERT_TRUE(JoinRows({{&first, 0, 2}, {&second, 1, 1}}, LayoutOf(first), 3, &joined).ok());
  EXPECT_EQ(joined.storage().tensors[0].dims, (Dims{3, 2}));
  EXPECT_EQ(testing::NumbersOf<float>(joined.storage().tensors[0]),
            (std::vector<float>{1, 2, 3, 4, 7, 8}));
}

TEST(JoinRows, FurtherRowsRepeatTheFirstRowOfTheFirstPart) {
  const TensorList first = ListOf({Floats({2}, {1, 2}), StringTensor({2}, {"a", "b"})});
  TensorList joined;
  ASSERT_TRUE(JoinRows({{&first, 1, 1}}, LayoutOf(first), 3, &joined).ok());
  EXPECT_EQ(testing::NumbersOf<float>(joined.storage().tensors[0]), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(joined.storage().tensors[1].strings, (std::vector<std::string>{"b", "b", "b"}));
}

TEST(JoinRows, TooManyBytesAreAnError) {
  const TensorList first = ListOf({NumberTensor<double>(dtype::kDouble, {1}, {1})});
  TensorList joined;
  const base::Status status =
      JoinRows({{&first, 0, 1}}, LayoutOf(first), base::kMaxTensorBytes, &joined);
  EXPECT_EQ(status.code(), base::Code::kResourceExhausted);
}

// --- JoinRows against a reference: rows of single elements, each found by its own indices ---

std::string ElementAt(const OpaqueTensor& tensor, int64_t element) {
  if (tensor.dtype == dtype::kString) return tensor.strings[static_cast<size_t>(element)];
  const size_t bytes = ElementBytes(tensor.dtype);
  return tensor.bytes.substr(static_cast<size_t>(element) * bytes, bytes);
}

// Returns the indices of element `at` of a tensor of `dims`.
Dims IndicesOf(int64_t at, const Dims& dims) {
  Dims indices(dims.size());
  for (size_t axis = dims.size(); axis-- > 0;) {
    indices[axis] = at % dims[axis];
    at /= dims[axis];
  }
  return indices;
}

// Returns the element of `row` with these indices, or a padded one.
std::string PaddedElement(const OpaqueTensor& tensor, int64_t row, const Dims& indices) {
  int64_t at = row;
  for (size_t axis = 0; axis < indices.size(); ++axis) {
    if (indices[axis] >= tensor.dims[axis + 1]) {
      return std::string(ElementBytes(tensor.dtype), '\0');
    }
    at = at * tensor.dims[axis + 1] + indices[axis];
  }
  return ElementAt(tensor, at);
}

std::vector<std::string> ExpectedElements(const std::vector<RowRange>& parts, const Dims& row_dims,
                                          int64_t row_count, size_t index) {
  std::vector<std::pair<const OpaqueTensor*, int64_t>> rows;
  for (const RowRange& part : parts) {
    for (int64_t i = 0; i < part.count; ++i) {
      rows.emplace_back(&part.tensors->storage().tensors[index], part.first + i);
    }
  }
  rows.resize(static_cast<size_t>(row_count), rows.front());
  std::vector<std::string> elements;
  for (const auto& [tensor, row] : rows) {
    for (int64_t at = 0; at < Product(row_dims); ++at) {
      elements.push_back(PaddedElement(*tensor, row, IndicesOf(at, row_dims)));
    }
  }
  return elements;
}

class RandomLists {
 public:
  explicit RandomLists(unsigned seed) : random_(seed) {
    static constexpr int kDtypes[] = {
        dtype::kFloat, dtype::kDouble, dtype::kInt32,  dtype::kUint8, dtype::kInt16,
        dtype::kInt8,  dtype::kString, dtype::kInt64,  dtype::kBool,  dtype::kBfloat16,
        dtype::kHalf,  dtype::kUint16, dtype::kUint32, dtype::kUint64};
    for (int64_t i = Number(1, 3); i > 0; --i) {
      Dims dims(static_cast<size_t>(Number(0, 3)));
      for (int64_t& size : dims) size = Number(0, 4);
      columns_.push_back({kDtypes[Number(0, 13)], dims});
    }
  }

  int64_t Number(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }
  // Returns a list of random rows; of other sizes than the other lists' if `varies`.
  TensorList Next(bool varies) {
    TensorList list;
    list.Reset(columns_.size());
    const int64_t rows = Number(1, 5);
    for (size_t i = 0; i < columns_.size(); ++i) {
      Dims dims = {rows};
      for (const int64_t size : columns_[i].dims) dims.push_back(varies ? Number(0, 4) : size);
      EXPECT_TRUE(MakeTensor(columns_[i].dtype, dims, i, &list).ok());
      for (char& byte : list.storage().tensors[i].bytes) byte = static_cast<char>(random_());
      for (std::string& text : list.storage().tensors[i].strings) {
        text = std::string(static_cast<size_t>(Number(0, 30)), static_cast<char>(Number(0, 255)));
      }
    }
    return list;
  }

 private:
  std::mt19937 random_;
  std::vector<RowLayout::Column> columns_;
};

TEST(JoinRows, AgreesWithTheReferenceForRandomListsAndPadding) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomLists lists(seed);
    const bool varies = lists.Number(0, 1) == 1;
    std::vector<TensorList> kept;
    for (int64_t i = lists.Number(1, 5); i > 0; --i) kept.push_back(lists.Next(varies));
    RowLayout layout = LayoutOf(kept.front());
    std::vector<RowRange> parts;
    int64_t row_count = lists.Number(0, 3);  // repeated at the end
    for (const TensorList& list : kept) {
      const int64_t first = lists.Number(0, *CountRows(list) - 1);
      parts.push_back({&list, first, lists.Number(1, *CountRows(list) - first)});
      row_count += parts.back().count;
      ASSERT_TRUE(layout.IsPaddable(LayoutOf(list)));
      layout.Widen(LayoutOf(list));
    }
    TensorList joined;
    ASSERT_TRUE(JoinRows(parts, layout, row_count, &joined).ok());
    EXPECT_EQ(CountRows(joined), row_count);
    EXPECT_TRUE(LayoutOf(joined) == layout);
    for (size_t i = 0; i < joined.size(); ++i) {
      const OpaqueTensor& tensor = joined.storage().tensors[i];
      std::vector<std::string> elements;
      for (int64_t at = 0; at < Product(tensor.dims); ++at) {
        elements.push_back(ElementAt(tensor, at));
      }
      ASSERT_EQ(elements, ExpectedElements(parts, layout.columns[i].dims, row_count, i));
    }
  }
}

}  // namespace
}  // namespace millpond::tensor
