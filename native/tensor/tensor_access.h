#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// Tensors element by element, for codecs other than TensorProto's (tensor_codec.h): JSON and raw
// contents. `index` is the index of a tensor in `tensors`, below its size().

// Makes tensor `index` a tensor of `dtype` and `dims`, in memory of the request allocator. Its
// numbers are not set yet, and its strings are empty.
//
// Returns INVALID_ARGUMENT, without an allocation, for an unknown dtype and for elements that are
// neither numbers nor strings. So it does for a negative size, for more than 254 dimensions and for
// 2^63 or more elements. Returns RESOURCE_EXHAUSTED for more than base::kMaxTensorBytes, or if no
// memory is left.
base::Status MakeTensor(int dtype, const std::vector<int64_t>& dims, size_t index,
                        TensorList* tensors);

// Extends tensor `index` to one dimension of `capacity` elements and keeps its first `used_count`.
// For a tensor whose size is known only after its last element: make it with one dimension of a
// guessed size, extend it whenever it is full, and call ShapeTensor at the end.
//
// Cost: moves the kept elements once. Returns MakeTensor's errors, and then leaves the tensor
// unchanged.
base::Status ExtendTensor(int64_t capacity, int64_t used_count, size_t index, TensorList* tensors);
// Gives tensor `index` the shape `dims`, and as many of its first elements as the shape takes.
// Copies nothing; the memory of the other elements stays with the tensor. Returns INTERNAL if it
// has too few elements.
base::Status ShapeTensor(const std::vector<int64_t>& dims, size_t index, TensorList* tensors);

// Returns the elements of tensor `index`, a tensor of numbers or bools, in row-major order. Returns
// null if it has no elements.
void* MutableElements(size_t index, TensorList* tensors);

// Sets string `element` of tensor `index`, a tensor of strings. Strings are counted in row-major
// order. Returns RESOURCE_EXHAUSTED if no memory is left for it.
base::Status SetString(size_t index, int64_t element, std::string_view value, TensorList* tensors);
// Resizes that string to `size` bytes. Returns them, for the caller to write, or the same error.
base::StatusOr<char*> ResizeString(size_t index, int64_t element, size_t size, TensorList* tensors);
std::string_view StringAt(const TensorList& tensors, size_t index, int64_t element);

// The dtype, shape and elements of a tensor. Valid as long as the tensor does not change.
struct TensorView {
  int dtype = 0;  // tensorflow::DataType (dtype.h)
  std::vector<int64_t> dims;
  int64_t element_count = 0;
  // The elements of numbers and bools, in row-major order and the machine's (little-endian) layout.
  // Empty for all other dtypes; StringAt reads strings.
  std::string_view bytes;
};
TensorView ViewTensor(const TensorList& tensors, size_t index);
// Returns the size of the first dimension of tensor `index`; 1 if it has none. Allocates nothing.
int64_t FirstSize(const TensorList& tensors, size_t index);

// Returns a second list of the same tensors. Both lists keep the elements: a reference each, no
// copy.
TensorList ShareTensors(const TensorList& tensors);
// Makes tensor `index` the tensor `from_index` of another list, in the same way.
void ShareTensor(const TensorList& from, size_t from_index, size_t index, TensorList* tensors);
// Returns true if the two tensors have the same elements in memory, and some. Shared rows may count
// as the tensor that they are of.
bool IsSameTensor(const TensorList& a, size_t index_a, const TensorList& b, size_t index_b);
// Returns rows `first` to `first + count` of each tensor, by its first dimension, in the same way.
// The elements keep their place in memory, which need not be aligned as kernels want it: for
// replies, not for runs.
TensorList ShareRows(const TensorList& tensors, int64_t first, int64_t count);

}  // namespace millpond::tensor
