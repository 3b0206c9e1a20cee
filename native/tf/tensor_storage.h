#pragma once

#include <vector>

#include "native/tensor/tensor_list.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tensor {

// The tensors of a TensorList are TensorFlow's, so that kernels take and return them without a
// copy.
struct TensorStorage {
  std::vector<tensorflow::Tensor> tensors;
};

}  // namespace millpond::tensor
