#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/tf/tensor_access.h"
#include "native/tf/tensor_list.h"

// Raw contents, as gRPC and the binary tensor extension of HTTP both carry them: elements in
// row-major order, little-endian; a string is 4 bytes of length and then its bytes.
namespace millpond::inference {

// Makes tensor `index` of `dtype` and `dims` with the elements that `raw` holds: one copy, from the
// network's buffers into the tensor. INVALID_ARGUMENT, without an allocation of the shape's size,
// where they are not `element_count`; else the errors of tf::MakeTensor.
base::Status ReadRawElements(base::WireReader raw, int dtype, const std::vector<int64_t>& dims,
                             int64_t element_count, size_t index, tf::TensorList* tensors);

// Bytes that WriteRawElements writes of tensor `index`, whose view is `view`. Both functions end
// early once `reply`, which they are for, is not wanted any more.
size_t RawElementBytes(const tf::TensorView& view, const tf::TensorList& tensors, size_t index,
                       base::ReplyBuffer* reply);
void WriteRawElements(const tf::TensorView& view, const tf::TensorList& tensors, size_t index,
                      base::ReplyBuffer* reply, base::WireWriter* writer);

}  // namespace millpond::inference
