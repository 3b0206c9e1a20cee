#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tf/tensor_list.h"

namespace millpond::inference {

// A tensorflow.serving.Input (tensorflow_serving/apis/input.proto) as it lies in the network's
// buffers: tf.Examples, and what they have in common. They are never parsed here: that is the
// graph's work, which says so where one is no Example.
class ExampleInput {
 public:
  // Merges a serialized Input into this, as protobuf does where a field comes twice; of the kinds
  // of list that there are, the one that comes last counts. Borrows the bytes. False where they do
  // not parse, or hold more lists than base::kMaxNamesPerRequest.
  [[nodiscard]] bool Read(base::WireReader proto);

  int64_t example_count() const { return example_count_; }

  // `examples` gets one tensor, of example_count() strings. Each is an Example's bytes behind those
  // of the context, which to protobuf is the two merged: a feature that both have is the example's.
  // INVALID_ARGUMENT: there is no example. RESOURCE_EXHAUSTED: more than base::kMaxTensorBytes,
  // which the context, repeated for each example, makes of few.
  base::Status MakeTensor(tf::TensorList* examples) const;

 private:
  bool ReadList(uint32_t kind, base::WireReader list);

  uint32_t kind_ = 0;                    // the field of the lists that count
  std::vector<base::WireReader> lists_;  // of one encoder's: one
  std::string context_;
  int64_t example_count_ = 0;
  size_t example_bytes_ = 0;
};

// A ClassificationRequest or a RegressionRequest, which have the same fields.
struct ExampleRequest {
  std::optional<ModelSpec> model_spec;
  ExampleInput input;
};

// INVALID_ARGUMENT where the bytes are no `message`, a name in tensorflow.serving. Borrows them.
base::Status DecodeExampleRequest(base::WireReader proto, const char* message,
                                  ExampleRequest* request);

// The signature of method `method_name` that a request means by `name`; the default one where that
// is empty. INVALID_ARGUMENT where there is no such signature, and where it takes anything but one
// input, `inputs`. What it is for is looked at only if it is to be (tf::Signature).
base::StatusOr<const tf::Signature*> FindExampleSignature(const servable::Servable& servable,
                                                          std::string_view name,
                                                          std::string_view method_name);

// Returns the number of examples in tensor 0 of `examples`. INVALID_ARGUMENT: the input of
// `signature`, which FindExampleSignature found, takes no such tensor.
base::StatusOr<int64_t> CountExamples(const tf::Signature& signature,
                                      const tf::TensorList& examples);

// Runs all outputs of a signature that FindExampleSignature found on tensor 0 of `examples`.
// Returns the number of examples. INVALID_ARGUMENT: the signature's input takes no such tensor.
base::StatusOr<int64_t> RunOnExamples(const servable::Servable& servable,
                                      const tf::Signature& signature, const tf::RunContext& run,
                                      const tf::TensorList& examples, tf::TensorList* result,
                                      metrics::PhaseWatch* watch);

inline constexpr std::string_view kClassifyMethodName = "tensorflow/serving/classify";
inline constexpr std::string_view kRegressMethodName = "tensorflow/serving/regress";

}  // namespace millpond::inference
