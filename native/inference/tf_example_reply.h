#pragma once

#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/model_spec.h"
#include "native/inference/tf_example_request.h"
#include "native/servable/servable.h"
#include "native/tensor/signature.h"

namespace millpond::inference {

// Returns the name of the signature that the request names, or "" if it names no signature or has
// no model_spec.
const std::string& SignatureNameOf(const ExampleRequest& request);

// Returns the spec of the version and the signature that answered.
ModelSpec AnsweredSpec(const servable::Servable& servable, const tensor::Signature& signature);

// Returns a serialized ClassificationResponse or RegressionResponse, which have the same fields,
// around a serialized result. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and CANCELLED are as in
// base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeExampleReply(const servable::Servable& servable,
                                                    const tensor::Signature& signature,
                                                    std::string_view result,
                                                    const base::ReplyLimits& limits);

}  // namespace millpond::inference
