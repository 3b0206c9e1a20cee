#include "native/rpc/predict.h"

#include <string>
#include <string_view>

namespace millpond::rpc {
namespace {

using base::Status;

std::string_view RequestedSignatureName(const PredictRequest& request) {
  if (!request.model_spec || request.model_spec->signature_name.empty()) {
    return tf::kDefaultSignatureName;
  }
  return request.model_spec->signature_name;
}

base::StatusOr<const tf::Signature*> FindSignature(const servable::Servable& servable,
                                                   std::string_view name) {
  const tf::SignatureMap& signatures = servable.signatures();
  const auto found = signatures.find(name);
  if (found != signatures.end()) return &found->second;
  std::string message = "Serving signature key \"" + std::string(name) +
                        "\" not found; signatures of " + servable.id().name + " version " +
                        std::to_string(servable.id().version) + ":";
  for (const auto& [other, signature] : signatures) message += " " + other;
  return base::FailedPrecondition(std::move(message));
}

// Adds `name` to a list like "{a, b}".
void AppendName(std::string_view name, std::string* list) {
  if (!list->empty()) *list += ", ";
  *list += name;
}

bool IsSent(const PredictRequest& request, std::string_view name) {
  for (const auto& input : request.inputs) {
    if (input.name == name) return true;
  }
  return false;
}

Status InputsDiffer(const PredictRequest& request, const tf::Signature& signature) {
  std::string extra;
  std::string missing;
  for (const auto& input : request.inputs) {
    if (tf::FindTensorSpec(signature.inputs, input.name) < 0) AppendName(input.name, &extra);
  }
  for (const auto& spec : signature.inputs) {
    if (!IsSent(request, spec.name)) AppendName(spec.name, &missing);
  }
  return base::InvalidArgument("inputs do not match signature '" + signature.name +
                               "'. Sent extra: {" + extra + "}. Missing but required: {" + missing +
                               "}.");
}

// Decodes each input to its place in the signature's order.
Status DecodeInputs(const PredictRequest& request, const tf::Signature& signature,
                    tf::TensorList* inputs) {
  if (request.inputs.size() != signature.inputs.size()) return InputsDiffer(request, signature);
  inputs->Reset(signature.inputs.size());
  for (const auto& input : request.inputs) {
    const int index = tf::FindTensorSpec(signature.inputs, input.name);
    if (index < 0) return InputsDiffer(request, signature);
    const Status decoded = tf::DecodeTensor(input.tensor, signature.inputs[index], index, inputs);
    if (!decoded.ok()) {
      return {decoded.code(), "input '" + input.name + "': " + decoded.message() + "; signature '" +
                                  signature.name + "'"};
    }
  }
  return {};
}

Status BadFilter(const std::string& name, const char* what, const tf::Signature& signature) {
  std::string outputs;
  for (const auto& spec : signature.outputs) AppendName(spec.name, &outputs);
  return base::InvalidArgument("output_filter '" + name + "' " + what + " signature '" +
                               signature.name + "', which has {" + outputs + "}");
}

// The outputs that the client asked for: all where it names none.
Status SelectOutputs(const PredictRequest& request, const tf::Signature& signature,
                     std::vector<PredictReply::Output>* outputs) {
  if (request.output_filter.empty()) {
    for (size_t i = 0; i < signature.outputs.size(); ++i) {
      outputs->push_back({&signature.outputs[i].name, i});
    }
    return {};
  }
  std::vector<bool> is_chosen(signature.outputs.size(), false);
  for (const std::string& name : request.output_filter) {
    const int index = tf::FindTensorSpec(signature.outputs, name);
    if (index < 0) return BadFilter(name, "is no output of", signature);
    if (is_chosen[index]) return BadFilter(name, "is named twice for", signature);
    is_chosen[index] = true;
    outputs->push_back({&signature.outputs[index].name, static_cast<size_t>(index)});
  }
  return {};
}

}  // namespace

Status Predict(const servable::Servable& servable, const PredictRequest& request,
               const tf::RunContext& run, PredictReply* reply) {
  const auto signature = FindSignature(servable, RequestedSignatureName(request));
  if (!signature.ok()) return signature.status();
  tf::TensorList inputs;
  MILLPOND_RETURN_IF_ERROR(SelectOutputs(request, *signature.value(), &reply->outputs));
  MILLPOND_RETURN_IF_ERROR(DecodeInputs(request, *signature.value(), &inputs));
  MILLPOND_RETURN_IF_ERROR(servable.Run(*signature.value(), run, inputs, &reply->tensors));
  reply->model_spec.name = servable.id().name;
  reply->model_spec.version = servable.id().version;
  reply->model_spec.signature_name = signature.value()->name;
  return {};
}

}  // namespace millpond::rpc
