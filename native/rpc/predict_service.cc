#include "native/rpc/predict_service.h"

#include <utility>

#include "native/base/clock.h"
#include "native/inference/metadata.h"
#include "native/inference/model_spec.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"

namespace millpond::rpc {

QueueKeys PredictHandler::QueueKeysOf(const Call& call) const {
  const inference::ModelSpec spec = inference::PeekModelSpec(call.request());
  return {KeyOf(spec.name), servable::BatchKeyOf(spec.name, spec.signature_name)};
}

base::Status PredictHandler::Prepare(ModelCall* call) const {
  inference::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodePredictRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  inference::Prepared<base::ReplyBytes>& prepared = *call->prepared();
  MILLPOND_RETURN_IF_ERROR(inference::PreparePredict(call->servable(), request, &prepared.run));
  call->OfferToReservoir(prepared.run.signatures.front()->name, *prepared.run.outputs);
  prepared.encode = [encoding = encoding_](servable::PreparedRun* run, base::ReplyBytes* reply) {
    inference::PredictReply answer = inference::PredictReplyOf(run);
    answer.encoding = encoding;
    return base::MoveValue(inference::EncodePredictReply(answer, run->context.reply_limits()),
                           reply);
  };
  return {};
}

base::Status MetadataHandler::Prepare(ModelCall* call) const {
  inference::MetadataRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeMetadataRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec, CanaryShare::kNever));
  call->watch()->Enter(metrics::Phase::kEncode, base::MonotonicNs());
  return call->SetReply(base::CopyReply(inference::EncodeMetadata(call->servable()),
                                        call->run_context().reply_limits()));
}

}  // namespace millpond::rpc
