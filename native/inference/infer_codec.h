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
#include "native/tf/tensor_access.h"

namespace millpond::inference {

// An inference.ModelInferRequest as it lies in the network's buffers: the elements are not decoded
// yet, and point into them.
struct InferMessage {
  InferRequest request;
  std::vector<base::WireReader> contents;  // of each input, an InferTensorContents; may be empty
  std::vector<base::WireReader> raw;       // raw_input_contents
};

// INVALID_ARGUMENT where the bytes are no ModelInferRequest, or name more than
// base::kMaxNamesPerRequest of anything. Borrows them.
base::Status DecodeInferMessage(base::WireReader proto, InferMessage* message);

// The model_name of a ModelInferRequest, for who must know it before the request is decoded; ""
// where there is none, or where the bytes up to it do not parse. Reads no further.
std::string PeekInferModelName(base::WireReader proto);

// A message's elements: raw, or in the typed field of their datatype. Borrows it.
class MessageElements final : public InferElements {
 public:
  explicit MessageElements(const InferMessage& message) : message_(message) {}
  base::Status Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                    int64_t element_count, size_t index, tf::TensorList* tensors) const override;

 private:
  const InferMessage& message_;
};

// Lays an InferReply out once as an inference.ModelInferResponse with raw contents: sizes first,
// then the bytes that go to the network. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED: as
// base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeInferReply(const InferReply& reply,
                                                  const base::ReplyLimits& limits);

}  // namespace millpond::inference
