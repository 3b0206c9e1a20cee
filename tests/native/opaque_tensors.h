#pragma once

#include <string>

#include "native/tf/tensor_list.h"

// The part of native/tf that rpc links, over tensors that are nothing but their bytes: so the gRPC
// server is tested without TensorFlow, which starts slowly and cannot be built with a sanitizer.
// An executable links opaque_tensors.cc or millpond_tf, not both.

namespace tensorflow {

class Tensor {
 public:
  std::string bytes;
};

}  // namespace tensorflow

namespace millpond::testing {

inline std::string Reversed(const std::string& bytes) { return {bytes.rbegin(), bytes.rend()}; }

}  // namespace millpond::testing
