#include "native/tf/fetch_plan.h"

#include <algorithm>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {

FetchPlan::FetchPlan(const tensor::Signature& signature, const tensor::OutputSet& outputs) {
  for (const tensor::TensorSpec& input : signature.inputs) feeds_.push_back(input.tensor_name);
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (!outputs.Contains(i)) continue;
    const std::string& name = signature.outputs[i].tensor_name;
    const auto feed = std::find(feeds_.begin(), feeds_.end(), name);
    if (feed != feeds_.end()) {
      sources_.push_back({true, static_cast<size_t>(feed - feeds_.begin())});
      continue;
    }
    const auto fetch = std::find(fetches_.begin(), fetches_.end(), name);
    sources_.push_back({false, static_cast<size_t>(fetch - fetches_.begin())});
    if (fetch == fetches_.end()) fetches_.push_back(name);
  }
}

void FetchPlan::Assemble(const tensor::TensorList& inputs,
                         const std::vector<tensorflow::Tensor>& fetched,
                         tensor::TensorList* result) const {
  result->Reset(sources_.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source source = sources_[i];
    result->storage().tensors[i] =
        source.is_input ? inputs.storage().tensors[source.index] : fetched[source.index];
  }
}

}  // namespace millpond::tf
