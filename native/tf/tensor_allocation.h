#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {

// The checks of every decoder before a client's shape becomes memory, and the allocation.

// Returns the number of elements of `dims`. Returns INVALID_ARGUMENT for more dimensions than
// TensorFlow takes, for a negative dimension, and for 2^63 or more elements. `dtype` is for the
// message.
base::StatusOr<int64_t> CountElements(int dtype, const std::vector<int64_t>& dims);

// Returns the size of an element in a tensor's buffer.
int64_t BufferBytesPerElement(tensorflow::DataType dtype);

// Returns RESOURCE_EXHAUSTED if `element_count`, the number of elements of `dims`, takes more than
// base::kMaxTensorBytes.
base::Status CheckTensorBytes(int dtype, const std::vector<int64_t>& dims, int64_t element_count);

// Makes a tensor in memory of the request allocator. Counts it in the thread's base::ShareScope.
// Returns RESOURCE_EXHAUSTED if no memory is left. The caller has made the checks above.
base::Status AllocateTensor(int dtype, const std::vector<int64_t>& dims,
                            tensorflow::Tensor* tensor);

// Counts the memory that `count` strings of `size` bytes take beside their tensor's buffer, before
// they are made. Returns RESOURCE_EXHAUSTED if no memory is left, or if they take more than
// base::kMaxTensorBytes. A short string lies in the buffer and takes nothing.
base::Status ChargeStrings(int64_t count, size_t size);
// Counts `bytes` of copies that the decoding of `tensor` makes.
base::Status ChargeContent(int64_t bytes, const tensorflow::Tensor& tensor);

// Copies `size` bytes from `from`, in pieces. Between two pieces it looks if an answer is still
// waited for.
base::Status CopyContent(base::WireReader* from, size_t size, char* to);

}  // namespace millpond::tf
