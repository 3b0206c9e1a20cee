#pragma once

#include <cstdint>
#include <vector>

#include "native/base/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {

// What every decoder asks before a client's shape becomes memory, and the memory.

// How many elements `dims` have. INVALID_ARGUMENT: more dimensions than TensorFlow takes, a
// negative one, or 2^63 elements and more. `dtype` is for the message.
base::StatusOr<int64_t> CountElements(int dtype, const std::vector<int64_t>& dims);

// What an element takes in a tensor's buffer.
int64_t BufferBytesPerElement(tensorflow::DataType dtype);

// RESOURCE_EXHAUSTED where `element_count`, which is that of `dims`, takes more than
// base::kMaxTensorBytes.
base::Status CheckTensorBytes(int dtype, const std::vector<int64_t>& dims, int64_t element_count);

// A tensor of the request allocator's memory, counted in the thread's base::ShareScope unless it is
// small. RESOURCE_EXHAUSTED if there is no memory for it. The checks above are the caller's.
base::Status AllocateTensor(int dtype, const std::vector<int64_t>& dims,
                            tensorflow::Tensor* tensor);

}  // namespace millpond::tf
