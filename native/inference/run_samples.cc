#include "native/inference/run_samples.h"

#include <string_view>
#include <utility>

#include "native/base/wire_reader.h"
#include "native/inference/predict_codec.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

std::vector<tensor::TensorSpec> NamesOf(const std::vector<tensor::TensorSpec>& specs) {
  std::vector<tensor::TensorSpec> names(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    names[i].name = specs[i].name;
    names[i].default_value = specs[i].default_value;
  }
  return names;
}

// Returns the names and the defaults of a signature, which are all that a request needs of it. The
// result outlives the version.
tensor::Signature NamesOf(const tensor::Signature& signature) {
  tensor::Signature names;
  names.name = signature.name;
  names.inputs = NamesOf(signature.inputs);
  names.outputs = NamesOf(signature.outputs);
  return names;
}

}  // namespace

void RunSamples::Give(int64_t now_ns) {
  for (const Run& run : runs_) {
    // Another request, or an earlier run of this request, may have given this kind meanwhile.
    if (!reservoir_->Wants(run.kind, now_ns)) continue;
    std::string request(run.kind.request_bytes, '\0');
    WritePredictRequest({model_name_, run.signature, run.outputs, run.inputs}, request.data());
    const std::string_view segment = request;
    reservoir_->Take(run.kind, {&segment, 1}, now_ns);
  }
}

base::Status SampledServable::Run(const tensor::Signature& signature,
                                  const tensor::OutputSet& outputs, const tensor::RunContext& run,
                                  const tensor::TensorList& inputs,
                                  tensor::TensorList* result) const {
  MILLPOND_RETURN_IF_ERROR(servable_.Run(signature, outputs, run, inputs, result));
  Sample(signature, outputs, inputs);
  return {};
}

std::optional<base::Status> SampledServable::RunTogether(
    const std::vector<const tensor::Signature*>& signatures, const tensor::RunContext& run,
    const tensor::TensorList& inputs, std::vector<tensor::TensorList>* results) const {
  auto ran = servable_.RunTogether(signatures, run, inputs, results);
  if (!ran || !ran->ok()) return ran;
  for (const tensor::Signature* signature : signatures) {
    Sample(*signature, tensor::OutputSet::All(signature->outputs.size()), inputs);
  }
  return ran;
}

void SampledServable::Sample(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                             const tensor::TensorList& inputs) const {
  if (reservoir_ == nullptr) return;
  const PredictRequestParts parts{id().name, signature, outputs, inputs};
  const servable::RequestKind kind(signature.name, outputs, EncodedPredictRequestBytes(parts),
                                   reservoir_->keeps_each_size());
  // Uses the time of arrival, because reading a clock would cost more than Wants.
  if (!reservoir_->Wants(kind, received_ns_)) return;
  samples_->reservoir_ = reservoir_;
  samples_->model_name_ = id().name;
  samples_->runs_.push_back({kind, NamesOf(signature), outputs, tensor::ShareTensors(inputs)});
}

}  // namespace millpond::inference
