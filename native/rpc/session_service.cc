#include "native/rpc/session_service.h"

#include <string>
#include <utility>

#include "native/base/clock.h"
#include "native/inference/session_run.h"

namespace millpond::rpc {

base::Status SessionRunHandler::Prepare(ModelCall* call) const {
  if (!is_on_) {
    return {base::Code::kUnimplemented,
            "SessionRun is off: start the server with --enable_session_run"};
  }
  inference::SessionRunRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeSessionRunRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec, CanaryShare::kNever));
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(inference::AnswerSessionRun(
      call->servable(), request, call->run_context(), base::MonotonicNs(), &reply, call->watch()));
  return call->SetReply(std::move(reply));
}

}  // namespace millpond::rpc
