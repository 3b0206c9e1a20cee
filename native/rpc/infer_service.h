#pragma once

#include <string>

#include "native/base/status.h"
#include "native/rpc/model_method.h"

namespace millpond::rpc {

// inference.GRPCInferenceService/ModelInfer, the hot path of the open inference protocol (KServe
// V2, Triton). Thread: as ModelMethod.
class ModelInferHandler final : public ModelMethod {
 public:
  explicit ModelInferHandler(const ModelMethodParts& parts)
      : ModelMethod(metrics::Method::kModelInfer, parts) {}

  std::string ModelNameOf(const Call& call) const override;
  // Returns the key of the default signature: a request names another one behind its tensors, which
  // are not read here.
  servable::BatchKey BatchKeyOf(const Call& call) const override;

 protected:
  base::Status Prepare(ModelCall* call) const override;
};

}  // namespace millpond::rpc
