#pragma once

#include "native/base/status.h"
#include "native/tf/output_set.h"
#include "native/tf/tensor_list.h"

namespace millpond::tf {

// How one signature of a SavedModel is run. Any number of threads at once, all methods.
class SignatureRunner {
 public:
  SignatureRunner() = default;
  SignatureRunner(const SignatureRunner&) = delete;
  SignatureRunner& operator=(const SignatureRunner&) = delete;
  virtual ~SignatureRunner() = default;

  // OK, or why a request for all outputs cannot be run.
  virtual const base::Status& made() const = 0;

  // Makes ready what a run for `outputs` uses, on the calling thread, and may take long: the
  // loader's business. What is ready is not made again.
  virtual base::Status Prepare(const OutputSet& outputs) const = 0;

  // `result` gets the tensors of `outputs` and no others, in the signature's order.
  virtual base::Status Run(const OutputSet& outputs, const TensorList& inputs,
                           TensorList* result) const = 0;
};

}  // namespace millpond::tf
