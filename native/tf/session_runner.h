#pragma once

#include "native/tf/signature.h"
#include "native/tf/signature_runner.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {

// A signature run as TensorFlow Serving runs it, for load tests' control: by Session::Run, on
// TensorFlow's inter-op pool, and with an executor that is made within the first request of each
// set of outputs. A deadline does not end a run, as its kernels do not see the thread's RunScope.
class SessionRunner final : public SignatureRunner {
 public:
  // Borrows both.
  SessionRunner(tensorflow::Session* session, const Signature& signature)
      : session_(session), signature_(signature) {}

  // Always OK: only a request finds out.
  const base::Status& made() const override { return made_; }
  // Nothing: a warm-up that does not ask for the clients' outputs does not help here.
  base::Status Prepare(const OutputSet&) const override { return {}; }

  base::Status Run(const OutputSet& outputs, const TensorList& inputs,
                   TensorList* result) const override;

 private:
  tensorflow::Session* const session_;
  const Signature& signature_;
  const base::Status made_;
};

}  // namespace millpond::tf
