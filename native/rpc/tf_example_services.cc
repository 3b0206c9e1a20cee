#include "native/rpc/tf_example_services.h"

#include <string>
#include <utility>

#include "native/inference/classify.h"
#include "native/inference/multi_inference.h"
#include "native/inference/regress.h"

namespace millpond::rpc {

base::Status ClassifyHandler::Answer(ModelCall* call) const {
  inference::ExampleRequest request;
  MILLPOND_RETURN_IF_ERROR(
      inference::DecodeExampleRequest(call->request(), "ClassificationRequest", &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(inference::AnswerClassify(call->sampled_servable(), request,
                                                     call->run_context(), &reply, call->watch()));
  return call->SetReply(std::move(reply));
}

base::Status RegressHandler::Answer(ModelCall* call) const {
  inference::ExampleRequest request;
  MILLPOND_RETURN_IF_ERROR(
      inference::DecodeExampleRequest(call->request(), "RegressionRequest", &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(inference::AnswerRegress(call->sampled_servable(), request,
                                                    call->run_context(), &reply, call->watch()));
  return call->SetReply(std::move(reply));
}

std::string MultiInferenceHandler::ModelNameOf(const Call& call) const {
  constexpr uint32_t kTasks = 1;
  base::WireReader request = call.request();
  base::WireTag tag;
  base::WireReader task;
  const bool has_task = request.ReadTag(&tag) && tag.field == kTasks &&
                        tag.type == base::WireType::kLengthDelimited &&
                        request.ReadDelimited(&task);
  // A request with another order of fields counts for no model.
  return has_task ? inference::PeekModelName(task) : "";
}

servable::BatchKey MultiInferenceHandler::BatchKeyOf(const Call& call) const {
  return servable::BatchKeyOfSeveral(ModelNameOf(call));
}

base::Status MultiInferenceHandler::Answer(ModelCall* call) const {
  inference::MultiInferenceRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeMultiInferenceRequest(call->request(), &request));
  const auto spec = inference::SpecOfAllTasks(request);
  if (!spec.ok()) return spec.status();
  MILLPOND_RETURN_IF_ERROR(call->Pin(spec.value()));
  base::ReplyBytes reply;
  MILLPOND_RETURN_IF_ERROR(inference::AnswerMultiInference(
      call->sampled_servable(), request, call->run_context(), &reply, call->watch()));
  if (request.tasks.size() > 1) call->OfferToJointReservoir(inference::SignatureNamesOf(request));
  return call->SetReply(std::move(reply));
}

}  // namespace millpond::rpc
