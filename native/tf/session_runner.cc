#include "native/tf/session_runner.h"

#include <string>
#include <utility>
#include <vector>

#include "native/tf/fetch_plan.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace millpond::tf {

base::Status SessionRunner::Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                                tensor::TensorList* result) const {
  const FetchPlan plan(signature_, outputs);
  std::vector<tensorflow::Tensor> fetched;
  if (!plan.IsHandedThrough()) {
    std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
    feeds.reserve(plan.feeds().size());
    for (size_t i = 0; i < plan.feeds().size(); ++i) {
      feeds.emplace_back(plan.feeds()[i], inputs.storage().tensors[i]);
    }
    tensorflow::RunMetadata metadata;
    MILLPOND_RETURN_IF_TF_ERROR(
        session_->Run(tensorflow::RunOptions(), feeds, plan.fetches(), {}, &fetched, &metadata),
        "");
  }
  plan.Assemble(inputs, fetched, result);
  return {};
}

}  // namespace millpond::tf
