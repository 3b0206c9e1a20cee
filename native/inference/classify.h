#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/prepared.h"
#include "native/inference/tf_example_request.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/tensor_access.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// The classes of each example of a request: labels, scores or both. It points into the servable's
// signature, whose handle must outlive it. Its tensors may alias the version's parameters.
class Classifications {
 public:
  const tensor::Signature& signature() const { return *signature_; }
  int64_t example_count() const { return example_count_; }
  int64_t class_count() const { return class_count_; }  // of each example
  bool has_labels() const { return labels_.has_value(); }
  bool has_scores() const { return scores_.has_value(); }

  // Returns the label or the score of class `number` of an example. Requires has_labels() or
  // has_scores().
  std::string_view label(int64_t example, int64_t number) const {
    return tensor::StringAt(tensors_, *labels_, example * class_count_ + number);
  }
  float score(int64_t example, int64_t number) const;

  // Takes the outputs of a run of `signature` on `example_count` examples. FindClassifySignature
  // has found the signature. Returns INVALID_ARGUMENT if an output has another dtype or shape than
  // Classify requires.
  base::Status Read(const tensor::Signature& signature, int64_t example_count,
                    tensor::TensorList tensors);

 private:
  base::Status CheckOutput(size_t index, int dtype) const;
  base::Status SetClassCount();

  const tensor::Signature* signature_ = nullptr;
  tensor::TensorList tensors_;
  int64_t example_count_ = 0;
  int64_t class_count_ = 0;
  std::optional<size_t> labels_;  // the index in tensors_, as in the signature's outputs
  std::optional<size_t> scores_;
  std::string_view score_bytes_;
};

// Returns the signature that Classify would run. It has one input `inputs` and one or two outputs,
// at least one of `classes` and `scores`. Returns INVALID_ARGUMENT if `name` is unknown or names
// another kind of signature.
base::StatusOr<const tensor::Signature*> FindClassifySignature(const servable::Servable& servable,
                                                               std::string_view name);

// Prepares the classification of the serialized tf.Examples that are tensor 0 of `examples`:
// strings, one dimension. Returns INVALID_ARGUMENT for the errors of FindClassifySignature, and for
// examples that the input does not take.
base::Status PrepareClassify(const servable::Servable& servable, std::string_view signature_name,
                             tensor::TensorList examples, servable::PreparedRun* run);

// Returns what a run that has succeeded gave. Returns INVALID_ARGUMENT for outputs of another dtype
// or shape than [examples, classes].
base::StatusOr<Classifications> ClassificationsOf(servable::PreparedRun* run);

// Returns a serialized ClassificationResult (tensorflow_serving/apis/classification.proto).
// RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and CANCELLED are as in base::ReplyBuffer.
base::StatusOr<base::ReplyBytes> EncodeClassifications(const Classifications& classifications,
                                                       const base::ReplyLimits& limits);

// Prepares a ClassificationRequest, whose reply is a serialized ClassificationResponse.
base::Status PrepareClassify(const servable::Servable& servable, const ExampleRequest& request,
                             Prepared<base::ReplyBytes>* prepared);

}  // namespace millpond::inference
