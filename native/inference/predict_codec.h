#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/tf/output_set.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_codec.h"
#include "native/tf/tensor_list.h"

namespace millpond::inference {

// A PredictRequest (tensorflow_serving/apis/predict.proto) as it lies in the network's buffers: the
// tensors are not decoded yet, and point into them.
struct PredictRequest {
  struct Input {
    std::string name;
    base::WireReader tensor;  // a serialized TensorProto
  };

  std::optional<ModelSpec> model_spec;
  std::vector<Input> inputs;  // as sent; of one name the last one counts
  std::vector<std::string> output_filter;
};

// INVALID_ARGUMENT where the bytes are no PredictRequest, or name more inputs or outputs than
// base::kMaxNamesPerRequest. Borrows them.
base::Status DecodePredictRequest(base::WireReader proto, PredictRequest* request);

// A run of a signature, as the PredictRequest that asks for it would say it. Borrows all.
struct PredictRequestParts {
  std::string_view model_name;
  const tf::Signature& signature;  // only its names are looked at
  const tf::OutputSet& outputs;
  const tf::TensorList& inputs;  // in the signature's order
};

// Bytes that WritePredictRequest writes: a PredictRequest for any version of the model, with an
// output_filter unless the outputs are all, and numbers as tensor_content. No allocation.
size_t EncodedPredictRequestBytes(const PredictRequestParts& parts);
void WritePredictRequest(const PredictRequestParts& parts, char* to);

// A PredictResponse to be: what its bytes are made of.
struct PredictReply {
  struct Output {
    const std::string* name;  // of the signature, which the caller keeps alive
    size_t tensor_index;      // into tensors
  };

  ModelSpec model_spec;  // with the version that answered
  std::vector<Output> outputs;
  tf::OutputSet output_set;  // the same, as the run knows them
  tf::TensorList tensors;
  tf::TensorEncoding encoding = tf::TensorEncoding::kTypedFields;
};

// Lays a PredictReply out once: sizes first, then the bytes that go to the network.
// RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED: as base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodePredictReply(const PredictReply& reply,
                                                    const base::ReplyLimits& limits);

}  // namespace millpond::inference
