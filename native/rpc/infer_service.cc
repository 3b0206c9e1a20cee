#include "native/rpc/infer_service.h"

#include <utility>

#include "native/inference/infer.h"
#include "native/inference/infer_codec.h"

namespace millpond::rpc {

std::string ModelInferHandler::ModelNameOf(const Call& call) const {
  return inference::PeekInferModelName(call.request());
}

servable::BatchKey ModelInferHandler::BatchKeyOf(const Call& call) const {
  return servable::BatchKeyOf(ModelNameOf(call), "");
}

base::Status ModelInferHandler::Prepare(ModelCall* call) const {
  inference::InferMessage message;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeInferMessage(call->request(), &message));
  if (message.request.model_spec.name.empty()) {
    return base::InvalidArgument("the request names no model; set model_name");
  }
  MILLPOND_RETURN_IF_ERROR(call->Pin(message.request.model_spec));
  inference::Prepared<base::ReplyBytes>& prepared = *call->prepared();
  MILLPOND_RETURN_IF_ERROR(inference::PrepareInfer(
      call->servable(), message.request, inference::MessageElements(message), &prepared.run));
  call->OfferRun();
  prepared.encode = [id = std::move(message.request.id)](servable::PreparedRun* run,
                                                         base::ReplyBytes* reply) {
    return base::MoveValue(
        inference::EncodeInferReply(inference::InferReplyOf(id, run), run->context.reply_limits()),
        reply);
  };
  return {};
}

}  // namespace millpond::rpc
