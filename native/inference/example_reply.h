#pragma once

#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/examples.h"
#include "native/inference/model_spec.h"
#include "native/servable/servable.h"
#include "native/tf/signature.h"

namespace millpond::inference {

// What a request that names none, or no model, means too: the empty name.
const std::string& SignatureNameOf(const ExampleRequest& request);

// Which version and signature answered.
ModelSpec AnsweredSpec(const servable::Servable& servable, const tf::Signature& signature);

// A serialized ClassificationResponse or RegressionResponse, which have the same fields, around a
// serialized result. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED: as base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeExampleReply(const servable::Servable& servable,
                                                    const tf::Signature& signature,
                                                    std::string_view result,
                                                    const base::ReplyLimits& limits);

}  // namespace millpond::inference
