#include "native/rpc/predict_service.h"

#include "native/base/clock.h"
#include "native/inference/metadata.h"
#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"

namespace millpond::rpc {

base::Status PredictHandler::Answer(ModelCall* call) const {
  inference::PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodePredictRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  inference::PredictReply reply;
  reply.encoding = encoding_;
  MILLPOND_RETURN_IF_ERROR(
      inference::Predict(call->servable(), request, call->run_context(), &reply, call->watch()));
  MILLPOND_RETURN_IF_ERROR(
      call->SetReply(inference::EncodePredictReply(reply, call->run_context().reply_limits())));
  call->OfferToReservoir(reply.model_spec.signature_name, reply.output_set);
  return {};
}

base::Status MetadataHandler::Answer(ModelCall* call) const {
  inference::MetadataRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeMetadataRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec, CanaryShare::kNever));
  call->watch()->Enter(metrics::Phase::kEncode, base::MonotonicNs());
  return call->SetReply(base::CopyReply(inference::EncodeMetadata(call->servable()),
                                        call->run_context().reply_limits()));
}

}  // namespace millpond::rpc
