#include "native/rpc/infer_service.h"

#include "native/inference/infer.h"
#include "native/inference/infer_codec.h"

namespace millpond::rpc {

std::string ModelInferHandler::ModelNameOf(const Call& call) const {
  return inference::PeekInferModelName(call.request());
}

servable::BatchKey ModelInferHandler::BatchKeyOf(const Call& call) const {
  return servable::BatchKeyOf(ModelNameOf(call), "");
}

base::Status ModelInferHandler::Answer(ModelCall* call) const {
  inference::InferMessage message;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeInferMessage(call->request(), &message));
  if (message.request.model_spec.name.empty()) {
    return base::InvalidArgument("the request names no model; set model_name");
  }
  MILLPOND_RETURN_IF_ERROR(call->Pin(message.request.model_spec));
  inference::InferReply reply;
  MILLPOND_RETURN_IF_ERROR(inference::Infer(call->sampled_servable(), message.request,
                                            inference::MessageElements(message),
                                            call->run_context(), &reply, call->watch()));
  return call->SetReply(inference::EncodeInferReply(reply, call->run_context().reply_limits()));
}

}  // namespace millpond::rpc
