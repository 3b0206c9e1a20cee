#pragma once

#include "native/rpc/model_method.h"

namespace millpond::rpc {

// tensorflow.serving.PredictionService/Classify. Thread of all three: as ModelMethod.
class ClassifyHandler final : public ModelMethod {
 public:
  explicit ClassifyHandler(const ModelMethodParts& parts)
      : ModelMethod(metrics::Method::kClassify, parts) {}

 protected:
  base::Status Prepare(ModelCall* call) const override;
};

// tensorflow.serving.PredictionService/Regress.
class RegressHandler final : public ModelMethod {
 public:
  explicit RegressHandler(const ModelMethodParts& parts)
      : ModelMethod(metrics::Method::kRegress, parts) {}

 protected:
  base::Status Prepare(ModelCall* call) const override;
};

// tensorflow.serving.PredictionService/MultiInference. One version answers all tasks.
class MultiInferenceHandler final : public ModelMethod {
 public:
  explicit MultiInferenceHandler(const ModelMethodParts& parts)
      : ModelMethod(metrics::Method::kMultiInference, parts) {}
  // Returns the name in the ModelSpec of the first task.
  std::string ModelNameOf(const Call& call) const override;
  servable::BatchKey BatchKeyOf(const Call& call) const override;

 protected:
  base::Status Prepare(ModelCall* call) const override;
};

}  // namespace millpond::rpc
