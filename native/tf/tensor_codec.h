#pragma once

#include <cstddef>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::tf {

// How a reply carries numbers. Clients read both; typed fields are what TensorFlow Serving sends
// unless it is told otherwise.
enum class TensorEncoding { kTypedFields, kTensorContent };

// Decodes a serialized tensorflow.TensorProto into (*tensors)[index], with one copy of its content
// at the most: from the network's buffers into the tensor's, which the request allocator gives.
//
// Takes every encoding that a client may send: tensor_content, or the typed fields, packed or not,
// in which fewer values than the shape has elements repeat the last one and none at all means
// zeros (tensorflow/core/framework/tensor.proto, "the last element is used to fill").
//
// INVALID_ARGUMENT, without an allocation of the size asked for: bytes that do not parse, a dtype
// that does not exist, a shape that is unknown, negative or overflows, content or values that
// contradict the shape, a dtype or shape that `spec` does not take. RESOURCE_EXHAUSTED: more than
// base::kMaxTensorBytes once expanded.
base::Status DecodeTensor(base::WireReader proto, const TensorSpec& spec, size_t index,
                          TensorList* tensors);

// Bytes that EncodeTensor writes: a tensorflow.TensorProto without tag and length.
//
// `reply` is the reply that the tensor is for, and null if it is for none. Both functions end early
// once that reply has failed or is not wanted any more; then their results mean nothing.
size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding encoding,
                          base::ReplyBuffer* reply);
void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding encoding,
                  base::ReplyBuffer* reply, base::WireWriter* writer);

}  // namespace millpond::tf
