#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/tensor/tensor_access.h"
#include "native/tensor/tensor_list.h"

// Raw contents, as gRPC and the binary tensor extension of HTTP carry them. The elements are in
// row-major order, little-endian. A string is 4 bytes of length, then its bytes.
namespace millpond::inference {

// Makes tensor `index` of `dtype` and `dims` with the elements in `raw`. It copies once, from the
// network's buffers into the tensor. Returns INVALID_ARGUMENT if `raw` does not hold
// `element_count` elements, before it allocates memory for the shape. Otherwise returns the errors
// of tensor::MakeTensor.
base::Status ReadRawElements(base::WireReader raw, int dtype, const std::vector<int64_t>& dims,
                             int64_t element_count, size_t index, tensor::TensorList* tensors);

// Returns the number of bytes that WriteRawElements writes for tensor `index`, whose view is
// `view`. Both functions end early once `reply`, for which they work, is no longer wanted.
size_t RawElementBytes(const tensor::TensorView& view, const tensor::TensorList& tensors,
                       size_t index, base::ReplyBuffer* reply);
void WriteRawElements(const tensor::TensorView& view, const tensor::TensorList& tensors,
                      size_t index, base::ReplyBuffer* reply, base::WireWriter* writer);

}  // namespace millpond::inference
