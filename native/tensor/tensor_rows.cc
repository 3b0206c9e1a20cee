#include "native/tensor/tensor_rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::tensor {
namespace {

using base::Status;

int64_t Product(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// Copies elements of tensor `index` of one list to the same tensor of another one.
class ElementCopier {
 public:
  ElementCopier(size_t index, const TensorList& from, TensorList* to)
      : index_(index), from_(from), view_(ViewTensor(from, index)), to_(to) {
    if (view_.dtype == dtype::kString) return;
    element_bytes_ = ElementBytes(view_.dtype);
    target_ = static_cast<char*>(MutableElements(index, to));
  }

  const TensorView& view() const { return view_; }

  Status Copy(int64_t from_element, int64_t to_element, int64_t count) const {
    if (count == 0) return {};
    if (element_bytes_ > 0) {
      const size_t bytes = static_cast<size_t>(count) * element_bytes_;
      std::memcpy(target_ + to_element * static_cast<int64_t>(element_bytes_),
                  view_.bytes.data() + from_element * static_cast<int64_t>(element_bytes_), bytes);
      return {};
    }
    for (int64_t i = 0; i < count; ++i) {
      MILLPOND_RETURN_IF_ERROR(
          SetString(index_, to_element + i, StringAt(from_, index_, from_element + i), to_));
    }
    return {};
  }

 private:
  const size_t index_;
  const TensorList& from_;
  const TensorView view_;
  TensorList* const to_;
  size_t element_bytes_ = 0;  // 0: strings
  char* target_ = nullptr;
};

// Copies a block of dimensions `from` into a block of dimensions `to`, none of which is smaller.
Status CopyBlock(const ElementCopier& copier, const int64_t* from, const int64_t* to, size_t rank,
                 int64_t from_element, int64_t to_element) {
  if (rank == 0) return copier.Copy(from_element, to_element, 1);
  if (rank == 1) return copier.Copy(from_element, to_element, from[0]);
  const int64_t from_step = Product({from + 1, from + rank});
  const int64_t to_step = Product({to + 1, to + rank});
  for (int64_t i = 0; i < from[0]; ++i) {
    MILLPOND_RETURN_IF_ERROR(CopyBlock(copier, from + 1, to + 1, rank - 1,
                                       from_element + i * from_step, to_element + i * to_step));
  }
  return {};
}

// Fills tensor `index` of `joined` with the rows of all parts.
Status FillTensor(const std::vector<RowRange>& parts, const RowLayout::Column& column,
                  int64_t row_count, size_t index, TensorList* joined) {
  const int64_t row_elements = Product(column.dims);
  int64_t row = 0;
  const auto take = [&](const RowRange& part) -> Status {
    const ElementCopier copier(index, *part.tensors, joined);
    const std::vector<int64_t> dims(copier.view().dims.begin() + 1, copier.view().dims.end());
    if (dims == column.dims) {
      row += part.count;
      return copier.Copy(part.first * row_elements, (row - part.count) * row_elements,
                         part.count * row_elements);
    }
    const int64_t from_elements = Product(dims);
    for (int64_t i = 0; i < part.count; ++i, ++row) {
      MILLPOND_RETURN_IF_ERROR(CopyBlock(copier, dims.data(), column.dims.data(), dims.size(),
                                         (part.first + i) * from_elements, row * row_elements));
    }
    return {};
  };
  for (const RowRange& part : parts) MILLPOND_RETURN_IF_ERROR(take(part));
  while (row < row_count) {
    MILLPOND_RETURN_IF_ERROR(take({parts.front().tensors, parts.front().first, 1}));
  }
  return {};
}

}  // namespace

std::optional<int64_t> CountRows(const TensorList& tensors) {
  int64_t count = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView view = ViewTensor(tensors, i);
    const bool is_plain = view.dtype == dtype::kString || ElementBytes(view.dtype) > 0;
    if (!is_plain || view.dims.empty() || view.dims[0] == 0) return {};
    if (i > 0 && view.dims[0] != count) return {};
    count = view.dims[0];
  }
  if (count == 0) return {};
  return count;
}

int64_t CountBytes(const TensorList& tensors) {
  size_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView view = ViewTensor(tensors, i);
    bytes += view.bytes.size();
    if (view.dtype != dtype::kString) continue;
    for (int64_t element = 0; element < view.element_count; ++element) {
      bytes += StringAt(tensors, i, element).size();
    }
  }
  return static_cast<int64_t>(bytes);
}

bool RowLayout::IsPaddable(const RowLayout& other) const {
  return std::equal(columns.begin(), columns.end(), other.columns.begin(), other.columns.end(),
                    [](const Column& a, const Column& b) {
                      return a.dtype == b.dtype && a.dims.size() == b.dims.size();
                    });
}

void RowLayout::Widen(const RowLayout& other) {
  for (size_t i = 0; i < columns.size(); ++i) {
    for (size_t axis = 0; axis < columns[i].dims.size(); ++axis) {
      columns[i].dims[axis] = std::max(columns[i].dims[axis], other.columns[i].dims[axis]);
    }
  }
}

RowLayout LayoutOf(const TensorList& tensors) {
  RowLayout layout;
  layout.columns.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView view = ViewTensor(tensors, i);
    layout.columns.push_back({view.dtype, {view.dims.begin() + 1, view.dims.end()}});
  }
  return layout;
}

base::Status JoinRows(const std::vector<RowRange>& parts, const RowLayout& layout,
                      int64_t row_count, TensorList* joined) {
  joined->Reset(layout.columns.size());
  for (size_t i = 0; i < layout.columns.size(); ++i) {
    std::vector<int64_t> dims = {row_count};
    dims.insert(dims.end(), layout.columns[i].dims.begin(), layout.columns[i].dims.end());
    MILLPOND_RETURN_IF_ERROR(MakeTensor(layout.columns[i].dtype, dims, i, joined));
    const bool is_padded = std::any_of(parts.begin(), parts.end(), [&](const RowRange& part) {
      const TensorView view = ViewTensor(*part.tensors, i);
      return !std::equal(view.dims.begin() + 1, view.dims.end(), dims.begin() + 1, dims.end());
    });
    if (is_padded && layout.columns[i].dtype != dtype::kString) {
      const TensorView view = ViewTensor(*joined, i);
      if (!view.bytes.empty()) std::memset(MutableElements(i, joined), 0, view.bytes.size());
    }
    MILLPOND_RETURN_IF_ERROR(FillTensor(parts, layout.columns[i], row_count, i, joined));
  }
  return {};
}

}  // namespace millpond::tensor
