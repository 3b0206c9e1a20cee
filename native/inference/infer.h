#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/inference/model_spec.h"
#include "native/servable/prepared_run.h"
#include "native/servable/servable.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// A parameter of the open inference protocol: a text, or a number. A bool is a number, too.
struct InferParameter {
  std::string name;
  std::string text;
  double number = 0;

  // False for an empty text, 0 and false, which mean the same as a parameter that is left out.
  bool IsSet() const { return !text.empty() || number != 0; }
};

// A request of the open inference protocol (KServe V2, Triton), with the fields that gRPC and JSON
// share. The elements of its inputs are not read yet; InferElements reads them.
struct InferRequest {
  struct Input {
    std::string name;
    std::string datatype;
    std::vector<int64_t> dims;
  };

  ModelSpec model_spec;  // without the signature's name, which is a parameter
  std::string id;
  std::vector<InferParameter> parameters;
  std::vector<Input> inputs;
  std::vector<std::string> outputs;               // empty: all outputs
  std::vector<InferParameter> tensor_parameters;  // of inputs and outputs
};

// Sets the version of `spec` from `model_version`: empty, a version's number, or otherwise a label.
// The protocol has no field for labels.
void SetModelVersion(const std::string& model_version, ModelSpec* spec);

// The elements of a request's inputs, in the fields of a protobuf message, or in JSON and the bytes
// after it.
class InferElements {
 public:
  // Makes tensor `index` of `dtype` and `dims`, with the `element_count` elements of
  // request.inputs[input]. Returns INVALID_ARGUMENT if the request has elements of another kind,
  // fewer, or more. It does so before it allocates memory for the shape. Otherwise returns the
  // errors of tensor::MakeTensor.
  virtual base::Status Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                            int64_t element_count, size_t index,
                            tensor::TensorList* tensors) const = 0;

 protected:
  ~InferElements() = default;
};

// The description of one output of a reply.
struct InferReplyOutput {
  const std::string* name = nullptr;  // of the signature, which the caller keeps alive
  std::string_view datatype;
  size_t tensor_index = 0;  // into tensors
};

struct InferReply {
  std::string model_name;
  int64_t version = 0;                    // the version that answered
  std::string id;                         // the request's
  std::vector<InferReplyOutput> outputs;  // in the signature's order
  tensor::TensorList tensors;
};

// Checks the parameters of `request`, finds the signature and reads the inputs. The parameter
// `signature_name` selects a signature other than serving_default.
//
// Returns FAILED_PRECONDITION for an unknown signature. Returns INVALID_ARGUMENT for inputs or
// outputs that the signature does not have, for duplicates, for another datatype or shape, and for
// elements that contradict them. Returns UNIMPLEMENTED for shared memory, classification,
// sequences, and an output whose dtype has no name in the protocol.
base::Status PrepareInfer(const servable::Servable& servable, const InferRequest& request,
                          const InferElements& elements, servable::PreparedRun* run);

// Returns the reply of a run that has succeeded, with its results, to the request `id`. It points
// into the servable's signature, so the servable's handle must outlive it. Its tensors may alias
// the version's parameters.
InferReply InferReplyOf(std::string id, servable::PreparedRun* run);

}  // namespace millpond::inference
