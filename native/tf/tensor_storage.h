#pragma once

#include <memory>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/tensor/tensor_list.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tensor {

// The tensors of a TensorList are TensorFlow's, so that kernels take and return them without a
// copy.
struct TensorStorage {
  std::vector<tensorflow::Tensor> tensors;
  // Counts the results of a run until the last list that has a part of them is gone.
  std::shared_ptr<const base::ByteBudget::Share> charge;
};

}  // namespace millpond::tensor
