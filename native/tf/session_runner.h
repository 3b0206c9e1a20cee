#pragma once

#include "native/tensor/signature.h"
#include "native/tf/signature_runner.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {

// Runs a signature as TensorFlow Serving does, for the control of load tests: by Session::Run, on
// TensorFlow's inter-op pool. The first request for each set of outputs makes its executor. A
// deadline does not end a run, because the kernels do not see the thread's RunScope.
class SessionRunner final : public SignatureRunner {
 public:
  // Borrows both arguments.
  SessionRunner(tensorflow::Session* session, const tensor::Signature& signature)
      : session_(session), signature_(signature) {}

  // Always OK: only a request makes an executor.
  const base::Status& made() const override { return made_; }
  // Does nothing: only a warm-up with the clients' outputs would help here.
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }

  base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override;

 private:
  tensorflow::Session* const session_;
  const tensor::Signature& signature_;
  const base::Status made_;
};

}  // namespace millpond::tf
