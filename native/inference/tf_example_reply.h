#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/model_spec.h"
#include "native/inference/tf_example_request.h"
#include "native/servable/prepared_run.h"
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

// Encodes that response of a run that has succeeded. `results` are what the run gave, and `encode`
// makes their serialized result. Returns the errors of both, and of the function above.
template <typename Results>
base::Status EncodeExampleRun(const servable::PreparedRun& run,
                              const base::StatusOr<Results>& results,
                              base::StatusOr<base::ReplyBytes> (*encode)(const Results&,
                                                                         const base::ReplyLimits&),
                              base::ReplyBytes* reply) {
  if (!results.ok()) return results.status();
  const base::ReplyLimits limits = run.context.reply_limits();
  const auto result = encode(results.value(), limits);
  if (!result.ok()) return result.status();
  return base::MoveValue(
      EncodeExampleReply(*run.servable, *run.signatures.front(), result.value().view(), limits),
      reply);
}

}  // namespace millpond::inference
