#pragma once

#include "native/base/status.h"
#include "native/inference/infer.h"
#include "native/inference/prepared.h"
#include "native/servable/prepared_run.h"

namespace millpond::testing {

// Answers a request by a run of its own. `prepare` prepares it.
template <typename Reply, typename Prepare>
base::Status AnswerAlone(const Prepare& prepare, Reply* reply) {
  inference::Prepared<Reply> prepared;
  MILLPOND_RETURN_IF_ERROR(prepare(&prepared));
  return inference::AnswerAlone(&prepared, reply);
}

inline base::Status AnswerInfer(const servable::Servable& servable,
                                const inference::InferRequest& request,
                                const inference::InferElements& elements,
                                inference::InferReply* reply) {
  servable::PreparedRun run;
  MILLPOND_RETURN_IF_ERROR(inference::PrepareInfer(servable, request, elements, &run));
  servable::RunAlone(&run);
  MILLPOND_RETURN_IF_ERROR(inference::EndRun(&run));
  *reply = inference::InferReplyOf(request.id, &run);
  return {};
}

}  // namespace millpond::testing
