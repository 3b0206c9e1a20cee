#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/inference/infer.h"
#include "native/inference/raw_elements.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {

// An inference.ModelInferRequest as it lies in the network's buffers. The elements are not decoded
// yet, and point into the buffers.
struct InferMessage {
  InferRequest request;
  std::vector<base::WireReader> contents;  // an InferTensorContents for each input; may be empty
  std::vector<base::WireReader> raw;       // raw_input_contents
};

// Decodes a message that borrows the bytes. Returns INVALID_ARGUMENT if they are not a
// ModelInferRequest, or hold more than base::kMaxNamesPerRequest inputs, outputs and parameters
// together.
base::Status DecodeInferMessage(base::WireReader proto, InferMessage* message);

// Returns the model_name of a ModelInferRequest, for callers that need it before the request is
// decoded. Returns "" if the name is missing, or if the bytes before it do not parse. Reads no
// further than the name.
std::string PeekInferModelName(base::WireReader proto);

// The elements of a message: raw, or in the typed field of their datatype. Borrows the message.
class MessageElements final : public InferElements {
 public:
  explicit MessageElements(const InferMessage& message) : message_(message) {}
  base::Status Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                    int64_t element_count, size_t index,
                    tensor::TensorList* tensors) const override;

 private:
  const InferMessage& message_;
};

// Encodes an InferReply as an inference.ModelInferResponse with raw contents. The sizes are
// computed first, so that the bytes for the network are laid out once. RESOURCE_EXHAUSTED,
// DEADLINE_EXCEEDED and CANCELLED are as in base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeInferReply(const InferReply& reply,
                                                  const base::ReplyLimits& limits);

}  // namespace millpond::inference
