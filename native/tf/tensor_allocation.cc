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

// The longest string that lies in its tstring, which is 24 bytes.
constexpr size_t kInlineStringBytes = 22;
// An allocator adds about this much to a short block.
constexpr int64_t kBlockBytes = 16;

// The bytes that are copied between two looks, which takes less than a millisecond.
constexpr size_t kPieceBytes = size_t{4} << 20U;

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
  if (!base::ShareScope::Add(bytes)) {
    return base::ShareScope::NoMemoryFor(tensor::DescribeTensor(dtype, true, dims));
  }
  *tensor = tensorflow::Tensor(tensorflow::cpu_allocator(),
                               static_cast<tensorflow::DataType>(dtype), shape);
  if (tensor->IsInitialized()) return {};
  return {base::Code::kResourceExhausted,
          "no memory for " + tensor::DescribeTensor(dtype, true, dims)};
}

base::Status ChargeStrings(int64_t count, size_t size) {
  if (size <= kInlineStringBytes) return {};
  const int64_t string_bytes = static_cast<int64_t>(size) + kBlockBytes;
  if (count > base::kMaxTensorBytes / string_bytes) {
    return {base::Code::kResourceExhausted, std::to_string(count) + " strings of " +
                                                std::to_string(size) + " bytes take more than " +
                                                std::to_string(base::kMaxTensorBytes) +
                                                " bytes; send them in smaller batches"};
  }
  if (base::ShareScope::Add(count * string_bytes)) return {};
  return base::ShareScope::NoMemoryFor(std::to_string(count) + " strings of " +
                                       std::to_string(size) + " bytes");
}

base::Status ChargeContent(int64_t bytes, const tensorflow::Tensor& tensor) {
  if (base::ShareScope::Add(bytes)) return {};
  return base::ShareScope::NoMemoryFor(std::to_string(bytes) + " bytes of a tensor of " +
                                       tensorflow::DataTypeString(tensor.dtype()));
}

base::Status CopyContent(base::WireReader* from, size_t size, char* to) {
  while (size > 0) {
    const size_t piece = std::min(size, kPieceBytes);
    if (!from->Copy(to, piece)) return base::InvalidArgument("its bytes are not a TensorProto");
    to += piece;
    size -= piece;
    if (size > 0) MILLPOND_RETURN_IF_ERROR(base::ShareScope::CheckIsWanted());
  }
  return {};
}

}  // namespace millpond::tf
