#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/tensor/tensor_list.h"

// The part of native/tf that inference and rpc link, over tensors that are nothing but their bytes:
// so both are tested without TensorFlow, which starts slowly and cannot be built with a sanitizer.
// What decodes and encodes a TensorProto takes it as it is, strings one behind the other; tensors
// that are read and written element by element (tensor_access.h) have a dtype and a shape. An
// executable links opaque_tensors.cc or millpond_tf, not both.

namespace tensorflow {

class Tensor {
 public:
  std::string bytes;  // of a TensorProto, or of the elements of numbers
  int dtype = 0;
  std::vector<int64_t> dims;
  std::vector<std::string> strings;  // the elements, where dtype is that of strings
};

}  // namespace tensorflow

namespace millpond::testing {

inline std::string Reversed(const std::string& bytes) { return {bytes.rbegin(), bytes.rend()}; }

}  // namespace millpond::testing
