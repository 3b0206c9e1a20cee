#pragma once

#include <string_view>

#include "native/base/status.h"
#include "native/servable/servable.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::rest {

// The layout of the values in a Predict body, and in its reply.
enum class BodyFormat {
  kRow,       // "instances": a list of rows, each with a value for every input
  kColumnar,  // "inputs": a whole tensor for every input
};

struct PredictBody {
  const tensor::Signature* signature = nullptr;  // a signature of the servable
  BodyFormat format = BodyFormat::kRow;
  tensor::TensorList inputs;  // in the signature's order
};

// Reads {"signature_name": ..., "instances" or "inputs": ...}. Unknown keys are skipped, as in
// TensorFlow Serving. The known keys and a model's inputs must not be repeated. If signature_name
// follows the values and is not the default signature, the values are read twice, because the
// signature decides how to read them.
//
// Returns the errors of rest::Predict (rest_methods.h).
base::Status ReadPredictBody(const servable::Servable& servable, std::string_view body,
                             PredictBody* read);

}  // namespace millpond::rest
