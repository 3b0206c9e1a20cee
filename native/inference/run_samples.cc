#include "native/inference/run_samples.h"

#include <string_view>
#include <utility>

#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
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
    base::WireWriter writer(request.data());
    WritePredictRequest({model_name_, run.signature, run.outputs, run.inputs}, &writer);
    const std::string_view segment = request;
    reservoir_->Take(run.kind, {&segment, 1}, now_ns);
  }
}

void RunSamples::Keep(const servable::PreparedRun& run,
                      const std::shared_ptr<servable::RequestReservoir>& reservoir,
                      int64_t received_ns) {
  if (reservoir == nullptr) return;
  for (const tensor::Signature* signature : run.signatures) {
    const auto outputs =
        run.outputs ? *run.outputs : tensor::OutputSet::All(signature->outputs.size());
    const std::string& model_name = run.servable->id().name;
    const PredictRequestParts parts{model_name, *signature, outputs, run.inputs};
    const servable::RequestKind kind(signature->name, outputs, EncodedPredictRequestBytes(parts),
                                     run.servable->CompilesEachShape());
    // Uses the time of arrival, because reading a clock would cost more than Wants.
    if (!reservoir->Wants(kind, received_ns)) continue;
    reservoir_ = reservoir;
    model_name_ = model_name;
    runs_.push_back({kind, NamesOf(*signature), outputs, tensor::ShareTensors(run.inputs)});
  }
}

}  // namespace millpond::inference
