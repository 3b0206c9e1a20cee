#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "native/tf/output_set.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::tf {

// What a session is fed and asked for, so that it computes some outputs of a signature, and how
// these are made of what it answers: a session refuses to fetch what it is fed, and a tensor under
// two names is fetched once. A value; immutable.
class FetchPlan {
 public:
  FetchPlan(const Signature& signature, const OutputSet& outputs);

  // Tensors' names in the graph. The feeds are in the order of the signature's inputs.
  const std::vector<std::string>& feeds() const { return feeds_; }
  const std::vector<std::string>& fetches() const { return fetches_; }
  // Every output is an input handed through: there is nothing to ask a session.
  bool IsHandedThrough() const { return fetches_.empty() && !sources_.empty(); }

  // Puts the outputs into `result`, in the signature's order.
  void Assemble(const TensorList& inputs, const std::vector<tensorflow::Tensor>& fetched,
                TensorList* result) const;

 private:
  struct Source {
    bool is_input = false;
    size_t index = 0;  // into the inputs, or into what was fetched
  };

  std::vector<std::string> feeds_;
  std::vector<std::string> fetches_;
  std::vector<Source> sources_;
};

}  // namespace millpond::tf
