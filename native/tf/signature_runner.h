#pragma once

#include "native/base/status.h"
#include "native/tensor/output_set.h"
#include "native/tensor/tensor_list.h"
#include "native/tf/run_cost.h"

namespace millpond::tf {

// The interface that runs one signature of a SavedModel. Any number of threads may call all methods
// at the same time.
class SignatureRunner {
 public:
  SignatureRunner() = default;
  SignatureRunner(const SignatureRunner&) = delete;
  SignatureRunner& operator=(const SignatureRunner&) = delete;
  virtual ~SignatureRunner() = default;

  // OK, or the reason why a request for all outputs cannot be run.
  virtual const base::Status& made() const = 0;

  // Makes a callable for `outputs` on the calling thread, unless it is made already. May take long,
  // so only a loader calls it.
  virtual base::Status MakeCallable(const tensor::OutputSet& outputs) const = 0;

  // Runs the signature. `result` gets only the tensors of `outputs`, in the signature's order.
  virtual base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                           tensor::TensorList* result) const = 0;

  // The times of the signature's runs; each caller of Run records its own.
  RunCost& cost() const { return cost_; }

 private:
  mutable RunCost cost_;
};

}  // namespace millpond::tf
