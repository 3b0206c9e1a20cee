#pragma once

#include "native/rpc/model_method.h"

namespace millpond::rpc {

// tensorflow.serving.SessionService/SessionRun. UNIMPLEMENTED if SessionRun is off, or if the
// version was not loaded for it (tf::RuntimeOptions::serves_session_run). A canary answers only
// requests that name its version or label, because such a request is meant for one graph. For the
// same reason no request is kept for the next version to replay (see inference::RunSamples).
// Thread: as ModelMethod.
class SessionRunHandler final : public ModelMethod {
 public:
  SessionRunHandler(const ModelMethodParts& parts, bool is_on)
      : ModelMethod(metrics::Method::kSessionRun, parts), is_on_(is_on) {}
  servable::BatchKey BatchKeyOf(const Call&) const override { return servable::kNoBatchKey; }

 protected:
  base::Status Prepare(ModelCall* call) const override;

 private:
  const bool is_on_;
};

}  // namespace millpond::rpc
