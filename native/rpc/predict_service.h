#pragma once

#include "native/rpc/model_method.h"
#include "native/tensor/tensor_codec.h"

namespace millpond::rpc {

// tensorflow.serving.PredictionService/Predict: the hot path. Thread: as ModelMethod.
class PredictHandler final : public ModelMethod {
 public:
  // `encoding` is that of the tensors in replies.
  PredictHandler(const ModelMethodParts& parts, tensor::TensorEncoding encoding)
      : ModelMethod(metrics::Method::kPredict, parts), encoding_(encoding) {}
  // Parses the ModelSpec once for both keys.
  QueueKeys QueueKeysOf(const Call& call) const override;

 protected:
  base::Status Prepare(ModelCall* call) const override;

 private:
  const tensor::TensorEncoding encoding_;
};

// tensorflow.serving.PredictionService/GetModelMetadata. A canary answers only requests that name
// its version or label. Thread: as ModelMethod.
class MetadataHandler final : public ModelMethod {
 public:
  explicit MetadataHandler(const ModelMethodParts& parts)
      : ModelMethod(metrics::Method::kGetModelMetadata, parts) {}
  servable::BatchKey BatchKeyOf(const Call&) const override { return servable::kNoBatchKey; }

 protected:
  base::Status Prepare(ModelCall* call) const override;
};

}  // namespace millpond::rpc
