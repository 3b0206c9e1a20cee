#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/tf/dtype.h"
#include "native/tf/tensor_list.h"

namespace millpond::tf {

// Tensors element by element, for codecs other than TensorProto's (tensor_codec.h): JSON, and raw
// contents. `index` is that of a tensor in `tensors`, below its size().

// Makes tensor `index` one of `dtype` and `dims`, of memory that the request allocator gives. Its
// numbers are not set yet, its strings are empty.
//
// INVALID_ARGUMENT, without an allocation: a dtype that does not exist or whose elements are no
// plain numbers or strings, a negative size, more than 254 dimensions or 2^63 elements.
// RESOURCE_EXHAUSTED: more than base::kMaxTensorBytes, or no memory.
base::Status MakeTensor(int dtype, const std::vector<int64_t>& dims, size_t index,
                        TensorList* tensors);

// For a tensor whose size is known only once its last element has been read: make it with one
// dimension of a guessed size, extend it as often as it is full, and shape it at the end.
//
// Gives tensor `index` one dimension of `capacity` elements; its first `used_count` are kept. Cost:
// one move of those. MakeTensor's errors; the tensor is then as it was.
base::Status ExtendTensor(int64_t capacity, int64_t used_count, size_t index, TensorList* tensors);
// Tensor `index` becomes its first elements, as many as `dims` take, in the shape `dims`. Copies
// nothing; the memory of the elements behind stays with it. INTERNAL: it holds fewer.
base::Status ShapeTensor(const std::vector<int64_t>& dims, size_t index, TensorList* tensors);

// The elements of tensor `index`, which is of numbers or bools, in row-major order. Null where it
// has none.
void* MutableElements(size_t index, TensorList* tensors);

// Of tensor `index`, which is of strings: its string `element`, counted in row-major order.
void SetString(size_t index, int64_t element, std::string_view value, TensorList* tensors);
// The same made `size` bytes long, which the caller is to write.
char* ResizeString(size_t index, int64_t element, size_t size, TensorList* tensors);
std::string_view StringAt(const TensorList& tensors, size_t index, int64_t element);

// What a tensor is. Valid as long as the tensor is not changed.
struct TensorView {
  int dtype = 0;  // tensorflow::DataType (dtype.h)
  std::vector<int64_t> dims;
  int64_t element_count = 0;
  // The elements of numbers and bools, in row-major order and the machine's (little-endian) layout.
  // Empty for all other dtypes: strings are read by StringAt.
  std::string_view bytes;
};
TensorView ViewTensor(const TensorList& tensors, size_t index);

// The same tensors once more, of which both lists keep the elements: a reference each, no copy.
TensorList ShareTensors(const TensorList& tensors);

}  // namespace millpond::tf
