#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/prepared.h"
#include "native/inference/tf_example_request.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// One number for each example of a request. Like Classifications, it points into the servable's
// signature, and its tensors may alias the version's parameters.
class Regressions {
 public:
  const tensor::Signature& signature() const { return *signature_; }
  int64_t example_count() const { return example_count_; }
  float value(int64_t example) const;

  // Takes the outputs of a run, like Classifications::Read.
  base::Status Read(const tensor::Signature& signature, int64_t example_count,
                    tensor::TensorList tensors);

 private:
  const tensor::Signature* signature_ = nullptr;
  tensor::TensorList tensors_;
  int64_t example_count_ = 0;
  std::string_view value_bytes_;
};

// Returns the signature that Regress would run. It has one input `inputs` and one output `outputs`.
// Returns INVALID_ARGUMENT if `name` is unknown or names another kind of signature.
base::StatusOr<const tensor::Signature*> FindRegressSignature(const servable::Servable& servable,
                                                              std::string_view name);

// Prepares one number for each example. The contract is as in PrepareClassify.
base::Status PrepareRegress(const servable::Servable& servable, std::string_view signature_name,
                            tensor::TensorList examples, servable::PreparedRun* run);

// Returns what a run that has succeeded gave. Returns INVALID_ARGUMENT for an output of another
// dtype or shape than [examples] or [examples, 1].
base::StatusOr<Regressions> RegressionsOf(servable::PreparedRun* run);

// Returns a serialized RegressionResult (tensorflow_serving/apis/regression.proto).
// RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and CANCELLED are as in base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeRegressions(const Regressions& regressions,
                                                   const base::ReplyLimits& limits);

// Prepares a RegressionRequest, whose reply is a serialized RegressionResponse.
base::Status PrepareRegress(const servable::Servable& servable, const ExampleRequest& request,
                            Prepared<base::ReplyBytes>* prepared);

}  // namespace millpond::inference
