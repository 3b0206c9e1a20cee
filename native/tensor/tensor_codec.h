#pragma once

#include <cstddef>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// The encoding of numbers in a reply. Clients read both encodings. TensorFlow Serving sends typed
// fields by default.
enum class TensorEncoding { kTypedFields, kTensorContent };

// Decodes a serialized tensorflow.TensorProto into (*tensors)[index]. Copies its content at most
// once, from the network's buffers into the tensor's buffer, which the request allocator allocates.
//
// Takes every encoding that a client may send: tensor_content, or the typed fields, packed or not.
// If a typed field has fewer values than the shape has elements, the last value is repeated. If it
// has no values, all elements are zero (tensorflow/core/framework/tensor.proto, "the last element
// is used to fill").
//
// Returns INVALID_ARGUMENT, without an allocation of the requested size, for:
// - bytes that do not parse, or an unknown dtype,
// - a shape that is unknown, negative or overflows,
// - content or values that contradict the shape,
// - a dtype or shape that `spec` does not take.
//
// Returns RESOURCE_EXHAUSTED for more than base::kMaxTensorBytes once expanded.
base::Status DecodeTensor(base::WireReader proto, const TensorSpec& spec, size_t index,
                          TensorList* tensors);

// Returns the bytes that EncodeTensor writes: a tensorflow.TensorProto without tag and length.
//
// `reply` is the reply that the tensor is for, or null. Both functions end early if that reply has
// failed or is not wanted any more. Their results are then meaningless.
size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding encoding,
                          base::ReplyBuffer* reply);
void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding encoding,
                  base::ReplyBuffer* reply, base::WireWriter* writer);

}  // namespace millpond::tensor
