#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// The rows of a list of tensors: what stands at one index of their first dimension. A batch is the
// rows of several requests, one after the other.

// Returns the number of rows, or nullopt if the tensors have no rows in common: a scalar, tensors
// of different numbers of rows, no row or no tensor at all, or elements that are neither plain
// numbers nor strings.
std::optional<int64_t> CountRows(const TensorList& tensors);

// Returns the bytes of the elements of all tensors.
int64_t CountBytes(const TensorList& tensors);

// The dtype of each tensor and its dimensions after the first. Rows can be joined if their layouts
// are equal.
struct RowLayout {
  struct Column {
    int dtype = 0;
    std::vector<int64_t> dims;  // after the first

    friend bool operator==(const Column& a, const Column& b) {
      return a.dtype == b.dtype && a.dims == b.dims;
    }
  };

  std::vector<Column> columns;

  // Returns true if rows of `other` become rows of this layout by padding: the dtypes and the
  // numbers of dimensions are equal, only the sizes may differ.
  bool IsPaddable(const RowLayout& other) const;
  // Makes each size the larger one of both. Requires IsPaddable.
  void Widen(const RowLayout& other);

  friend bool operator==(const RowLayout& a, const RowLayout& b) { return a.columns == b.columns; }
};

// Returns the layout of tensors that have rows.
RowLayout LayoutOf(const TensorList& tensors);

// Some rows of a list, which the caller keeps alive.
struct RowRange {
  const TensorList* tensors;
  int64_t first;
  int64_t count;
};

// Copies the rows of `parts`, one after the other, into new tensors of `layout` and `row_count`
// rows, in memory of the request allocator. If that is more rows than the parts have, the last rows
// repeat the first row of the first part. A dimension that is smaller than the layout's is padded
// with zeros, or empty strings, at its end.
//
// Requires a part with a row, and layouts that are equal to `layout`, or paddable to it and nowhere
// larger: nothing is checked. Returns the errors of MakeTensor.
base::Status JoinRows(const std::vector<RowRange>& parts, const RowLayout& layout,
                      int64_t row_count, TensorList* joined);

}  // namespace millpond::tensor
