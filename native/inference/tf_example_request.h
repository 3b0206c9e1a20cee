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
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// A tensorflow.serving.Input (tensorflow_serving/apis/input.proto) as it lies in the network's
// buffers: tf.Examples and their common context. The Examples are not parsed here. The graph parses
// them, and its kernels report bytes that are not an Example.
class ExampleInput {
 public:
  // Merges a serialized Input into this, as protobuf does if a field comes twice. If lists of both
  // kinds come, the kind that comes last counts. Borrows the bytes. Returns false if they do not
  // parse, or hold more lists than base::kMaxNamesPerRequest.
  [[nodiscard]] bool Read(base::WireReader proto);

  int64_t example_count() const { return example_count_; }

  // Sets `examples` to one tensor of example_count() strings. Each string is the context's bytes
  // followed by an Example's bytes. Protobuf reads this as the two merged: if both have a feature,
  // the Example's feature counts. Returns INVALID_ARGUMENT without examples. Returns
  // RESOURCE_EXHAUSTED if the tensor would exceed base::kMaxTensorBytes. Few bytes on the wire can
  // do that, because the context is repeated for each example.
  base::Status MakeTensor(tensor::TensorList* examples) const;

 private:
  bool ReadList(uint32_t kind, base::WireReader list);

  uint32_t kind_ = 0;                    // the field number of the lists that count
  std::vector<base::WireReader> lists_;  // an encoder writes one list
  std::string context_;
  int64_t example_count_ = 0;
  size_t example_bytes_ = 0;
};

// A ClassificationRequest or a RegressionRequest, which have the same fields.
struct ExampleRequest {
  std::optional<ModelSpec> model_spec;
  ExampleInput input;
};

// Decodes a request that borrows the bytes. Returns INVALID_ARGUMENT if they are not a `message`,
// which is a name in tensorflow.serving.
base::Status DecodeExampleRequest(base::WireReader proto, const char* message,
                                  ExampleRequest* request);

// Returns the signature of method `method_name` that a request means by `name`; an empty name means
// the default signature. Returns INVALID_ARGUMENT if the signature does not exist, or if its inputs
// are not the single input `inputs`. The signature's method name is checked only if it is to be
// checked (tensor::Signature).
base::StatusOr<const tensor::Signature*> FindExampleSignature(const servable::Servable& servable,
                                                              std::string_view name,
                                                              std::string_view method_name);

// Returns the number of examples in tensor 0 of `examples`. Returns INVALID_ARGUMENT if the input
// of `signature` does not take this tensor. FindExampleSignature has found the signature.
base::StatusOr<int64_t> CountExamples(const tensor::Signature& signature,
                                      const tensor::TensorList& examples);

// Sets `run` to all outputs of a signature that FindExampleSignature found, on tensor 0 of
// `examples`. Returns INVALID_ARGUMENT if the signature's input does not take the tensor.
base::Status PrepareOnExamples(const servable::Servable& servable,
                               const tensor::Signature& signature, tensor::TensorList examples,
                               servable::PreparedRun* run);

inline constexpr std::string_view kClassifyMethodName = "tensorflow/serving/classify";
inline constexpr std::string_view kRegressMethodName = "tensorflow/serving/regress";

}  // namespace millpond::inference
