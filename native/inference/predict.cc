#include "native/inference/predict.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/inference/signature_request.h"

namespace millpond::inference {
namespace {

using base::Status;

std::string_view RequestedSignatureName(const PredictRequest& request) {
  return request.model_spec ? std::string_view(request.model_spec->signature_name) : "";
}

// The request's input for each input of a signature, or null if the request does not send it.
using SentInputs = std::vector<const PredictRequest::Input*>;

std::vector<std::string_view> MissingInputs(const tensor::Signature& signature,
                                            const SentInputs& sent) {
  std::vector<std::string_view> missing;
  for (size_t i = 0; i < sent.size(); ++i) {
    const tensor::TensorSpec& spec = signature.inputs[i];
    if (sent[i] == nullptr && spec.default_value == nullptr) missing.push_back(spec.name);
  }
  return missing;
}

Status MatchInputs(const PredictRequest& request, const tensor::Signature& signature,
                   SentInputs* sent) {
  sent->assign(signature.inputs.size(), nullptr);
  std::vector<std::string_view> extra;
  for (const auto& input : request.inputs) {
    const int index = tensor::FindTensorSpec(signature.inputs, input.name);
    if (index < 0) {
      extra.push_back(input.name);
    } else {
      (*sent)[index] = &input;
    }
  }
  const bool is_complete = std::find(sent->begin(), sent->end(), nullptr) == sent->end();
  if (extra.empty() && is_complete) return {};
  const std::vector<std::string_view> missing = MissingInputs(signature, *sent);
  if (extra.empty() && missing.empty()) return {};
  return InputsDiffer(signature, extra, missing);
}

// Decodes each input to its place in the signature's order. Inputs that are not sent get their
// defaults.
Status DecodeInputs(const PredictRequest& request, const tensor::Signature& signature,
                    tensor::TensorList* inputs) {
  SentInputs sent;
  MILLPOND_RETURN_IF_ERROR(MatchInputs(request, signature, &sent));
  inputs->Reset(signature.inputs.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i] == nullptr && UseDefault(signature, i, inputs)) continue;
    const Status decoded = tensor::DecodeTensor(sent[i]->tensor, signature.inputs[i], i, inputs);
    if (!decoded.ok()) {
      return {decoded.code(), "input '" + sent[i]->name + "': " + decoded.message() +
                                  "; signature '" + signature.name + "'"};
    }
  }
  return {};
}

// Lists the outputs in the signature's order, which is also the order in which a run returns them.
void NameOutputs(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                 std::vector<PredictReply::Output>* named) {
  named->reserve(outputs.size());
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (outputs.Contains(i)) named->push_back({&signature.outputs[i].name, named->size()});
  }
}

}  // namespace

Status PreparePredict(const servable::Servable& servable, const PredictRequest& request,
                      servable::PreparedRun* run) {
  const auto signature = FindSignature(servable, RequestedSignatureName(request));
  if (!signature.ok()) return signature.status();
  auto outputs = SelectOutputs(request.output_filter, *signature.value());
  if (!outputs.ok()) return outputs.status();
  MILLPOND_RETURN_IF_ERROR(DecodeInputs(request, *signature.value(), &run->inputs));
  run->servable = &servable;
  run->signatures = {signature.value()};
  run->outputs = std::move(outputs.value());
  return {};
}

PredictReply PredictReplyOf(servable::PreparedRun* run) {
  const tensor::Signature& signature = *run->signatures.front();
  PredictReply reply;
  reply.tensors = std::move(run->results.front());
  NameOutputs(signature, *run->outputs, &reply.outputs);
  reply.model_spec.name = run->servable->id().name;
  reply.model_spec.version = run->servable->id().version;
  reply.model_spec.signature_name = signature.name;
  return reply;
}

Status Predict(const servable::Servable& servable, const PredictRequest& request,
               const tensor::RunContext& context, PredictReply* reply) {
  servable::PreparedRun run;
  run.context = context;
  MILLPOND_RETURN_IF_ERROR(PreparePredict(servable, request, &run));
  servable::RunAlone(&run);
  MILLPOND_RETURN_IF_ERROR(EndRun(&run));
  *reply = PredictReplyOf(&run);
  return {};
}

Status MakeCallable(const servable::Servable& servable, const PredictRequest& request) {
  const auto signature = FindSignature(servable, RequestedSignatureName(request));
  if (!signature.ok()) return signature.status();
  const auto outputs = SelectOutputs(request.output_filter, *signature.value());
  if (!outputs.ok()) return outputs.status();
  return servable.MakeCallable(*signature.value(), outputs.value());
}

}  // namespace millpond::inference
