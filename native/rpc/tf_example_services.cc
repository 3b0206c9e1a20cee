#include "native/rpc/tf_example_services.h"

#include <string>

#include "native/inference/classify.h"
#include "native/inference/multi_inference.h"
#include "native/inference/regress.h"

namespace millpond::rpc {

base::Status ClassifyHandler::Prepare(ModelCall* call) const {
  inference::ExampleRequest request;
  MILLPOND_RETURN_IF_ERROR(
      inference::DecodeExampleRequest(call->request(), "ClassificationRequest", &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  call->OfferRun();
  return inference::PrepareClassify(call->servable(), request, call->prepared());
}

base::Status RegressHandler::Prepare(ModelCall* call) const {
  inference::ExampleRequest request;
  MILLPOND_RETURN_IF_ERROR(
      inference::DecodeExampleRequest(call->request(), "RegressionRequest", &request));
  MILLPOND_RETURN_IF_ERROR(call->Pin(request.model_spec));
  call->OfferRun();
  return inference::PrepareRegress(call->servable(), request, call->prepared());
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

base::Status MultiInferenceHandler::Prepare(ModelCall* call) const {
  inference::MultiInferenceRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeMultiInferenceRequest(call->request(), &request));
  const auto spec = inference::SpecOfAllTasks(request);
  if (!spec.ok()) return spec.status();
  MILLPOND_RETURN_IF_ERROR(call->Pin(spec.value()));
  call->OfferRun();
  if (request.tasks.size() > 1) call->OfferToJointReservoir(inference::SignatureNamesOf(request));
  return inference::PrepareMultiInference(call->servable(), request, call->prepared());
}

}  // namespace millpond::rpc
