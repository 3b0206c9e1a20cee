#include "native/tf/tensor_allocation.h"

#include <algorithm>
#include <string>

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/tensor/signature.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace millpond::tf {
namespace {

// The least size of a tensor that is counted in the budget. Thousands of smaller tensors take
// little memory, and each count would cost the request threads an access to a shared atomic.
constexpr int64_t kCountedBytesMin = 64 * 1024;

}  // namespace

base::StatusOr<int64_t> CountElements(int dtype, const std::vector<int64_t>& dims) {
  if (dims.size() > base::kMaxTensorRank) {
    return base::InvalidArgument("tensor_shape has " + std::to_string(dims.size()) +
                                 " dimensions; TensorFlow takes at most " +
                                 std::to_string(base::kMaxTensorRank));
  }
  int64_t count = 1;
  for (const int64_t size : dims) {
    // DescribeTensor writes -1 as "?", which would hide the offending value.
    if (size < 0) {
      return base::InvalidArgument("tensor_shape has a dimension of size " + std::to_string(size) +
                                   "; sizes are 0 or more");
    }
    if (__builtin_mul_overflow(count, size, &count)) {
      return base::InvalidArgument("tensor_shape " + tensor::DescribeTensor(dtype, true, dims) +
                                   " has more than 2^63 elements");
    }
  }
  return count;
}

// Returns the size of an element even if it is an object, for which TensorFlow's DataTypeSize
// returns 0. Otherwise 20 bytes on the wire could request 2^31 empty strings, of 24 bytes each.
int64_t BufferBytesPerElement(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_STRING:
      return sizeof(tensorflow::tstring);
    case tensorflow::DT_VARIANT:
      return sizeof(tensorflow::Variant);
    case tensorflow::DT_RESOURCE:
      return sizeof(tensorflow::ResourceHandle);
    default:
      return std::max(1, tensorflow::DataTypeSize(dtype));
  }
}

base::Status CheckTensorBytes(int dtype, const std::vector<int64_t>& dims, int64_t element_count) {
  const int64_t element_bytes = BufferBytesPerElement(static_cast<tensorflow::DataType>(dtype));
  if (element_count <= base::kMaxTensorBytes / element_bytes) return {};
  return {base::Code::kResourceExhausted,
          tensor::DescribeTensor(dtype, true, dims) + " takes more than " +
              std::to_string(base::kMaxTensorBytes) + " bytes; send it in smaller batches"};
}

base::Status AllocateTensor(int dtype, const std::vector<int64_t>& dims,
                            tensorflow::Tensor* tensor) {
  tensorflow::TensorShape shape;
  const auto made = tensorflow::TensorShapeUtils::MakeShape(dims, &shape);
  if (!made.ok()) return base::InvalidArgument(std::string(made.message()));
  const int64_t bytes =
      shape.num_elements() * BufferBytesPerElement(static_cast<tensorflow::DataType>(dtype));
  if (bytes >= kCountedBytesMin && !base::ShareScope::Add(bytes)) {
    return base::ShareScope::NoMemoryFor(tensor::DescribeTensor(dtype, true, dims));
  }
  *tensor = tensorflow::Tensor(tensorflow::cpu_allocator(),
                               static_cast<tensorflow::DataType>(dtype), shape);
  if (tensor->IsInitialized()) return {};
  return {base::Code::kResourceExhausted,
          "no memory for " + tensor::DescribeTensor(dtype, true, dims)};
}

}  // namespace millpond::tf
