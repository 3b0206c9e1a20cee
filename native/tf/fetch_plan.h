#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace tensorflow {
class Tensor;
}  // namespace tensorflow

namespace millpond::tf {

// The feeds and fetches of a session run that computes some outputs of a signature, and the way to
// assemble the outputs from its results. An output may be an input, which a session refuses to
// fetch. A tensor with two names is fetched once. A value; immutable.
class FetchPlan {
 public:
  FetchPlan(const tensor::Signature& signature, const tensor::OutputSet& outputs);

  // The names of tensors in the graph. The feeds are in the order of the signature's inputs.
  const std::vector<std::string>& feeds() const { return feeds_; }
  const std::vector<std::string>& fetches() const { return fetches_; }
  // True if every output is an input handed through, so that no session run is needed.
  bool IsHandedThrough() const { return fetches_.empty() && !sources_.empty(); }

  // Puts the outputs into `result`, in the signature's order.
  void Assemble(const tensor::TensorList& inputs, const std::vector<tensorflow::Tensor>& fetched,
                tensor::TensorList* result) const;

 private:
  struct Source {
    bool is_input = false;
    size_t index = 0;  // into the inputs, or into the fetched tensors
  };

  std::vector<std::string> feeds_;
  std::vector<std::string> fetches_;
  std::vector<Source> sources_;
};

}  // namespace millpond::tf
