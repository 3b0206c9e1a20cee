#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/inference/model_spec.h"
#include "native/servable/request_log.h"
#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_codec.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// A PredictRequest (tensorflow_serving/apis/predict.proto) as it lies in the network's buffers. The
// tensors are not decoded yet, and point into the buffers.
struct PredictRequest {
  struct Input {
    std::string name;
    base::WireReader tensor;  // a serialized TensorProto
  };

  std::optional<ModelSpec> model_spec;
  std::vector<Input> inputs;  // as sent; if a name is repeated, its last input counts
  std::vector<std::string> output_filter;
};

// Decodes a request that borrows the bytes. Returns INVALID_ARGUMENT if they are not a
// PredictRequest, or name more inputs or more outputs than base::kMaxNamesPerRequest.
base::Status DecodePredictRequest(base::WireReader proto, PredictRequest* request);

// The parts of the PredictRequest that asks for a given run of a signature. Borrows all of them.
struct PredictRequestParts {
  std::string_view model_name;
  const tensor::Signature& signature;  // only its names and its defaults are read
  const tensor::OutputSet& outputs;
  const tensor::TensorList& inputs;  // in the signature's order
  // The inputs that the request may have; null: all.
  const servable::LoggedNames* input_names = nullptr;
};

// Returns the number of bytes that WritePredictRequest writes. They are a PredictRequest for any
// version of the model. It has an output_filter unless all outputs are asked for, and numbers as
// tensor_content. An input that is the signature's default is left out, because the client did not
// send it, and another version may not have it. No allocation.
size_t EncodedPredictRequestBytes(const PredictRequestParts& parts);
void WritePredictRequest(const PredictRequestParts& parts, base::WireWriter* writer);

// The content of a PredictResponse that is not encoded yet.
struct PredictReply {
  struct Output {
    const std::string* name;  // of the signature, which the caller keeps alive
    size_t tensor_index;      // into tensors
  };

  ModelSpec model_spec;  // with the version that answered
  std::vector<Output> outputs;
  tensor::TensorList tensors;
  tensor::TensorEncoding encoding = tensor::TensorEncoding::kTypedFields;
};

// Writes a PredictReply as a PredictResponse, in two steps: it computes the sizes, so that the
// caller can make room, and then writes each tensor once.
//
// Thread: one. Cost: an allocation of a word for each output.
class PredictReplyWriter {
 public:
  // Computes the sizes. Borrows `reply`, and the buffer that the reply is for; null: there is none,
  // and the work cannot end early.
  explicit PredictReplyWriter(const PredictReply& reply, base::ReplyBuffer* buffer = nullptr);

  // The bytes that Write writes. Meaningless if the buffer has failed.
  size_t bytes() const { return bytes_; }
  void Write(base::WireWriter* writer) const;

 private:
  const PredictReply& reply_;
  base::ReplyBuffer* const buffer_;
  const size_t spec_bytes_;
  std::vector<size_t> tensor_bytes_;  // of each output
  size_t bytes_;
};

// Encodes a PredictReply. The sizes are computed first, so that the bytes for the network are laid
// out once. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and CANCELLED are as in base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodePredictReply(const PredictReply& reply,
                                                    const base::ReplyLimits& limits);

}  // namespace millpond::inference
