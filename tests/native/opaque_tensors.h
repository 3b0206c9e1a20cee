#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/tensor/tensor_list.h"

// The tensors of a TensorList without TensorFlow, which starts slowly and cannot be built with a
// sanitizer: plain bytes. Inference, rest and rpc are tested with them. A TensorProto is taken and
// returned as it is, its strings one behind the other, unless it has kRowsMark. Tensors that are
// read and written element by element (tensor_access.h) have a dtype and a shape. An executable
// links opaque_tensors.cc or millpond_tf, not both.

namespace millpond::testing {

struct OpaqueTensor {
  std::string bytes;  // of a TensorProto, or of the elements of numbers
  int dtype = 0;
  std::vector<int64_t> dims;
  std::vector<std::string> strings;  // the elements, if dtype is that of strings
};

// A request's tensor that begins with this mark becomes a vector of its input's dtype, which has
// rows. The rest are the bytes of its numbers.
inline constexpr char kRowsMark[] = "rows:";

// By pointers, because each step of an iterator is calls in a build without optimization.
inline std::string Reversed(const std::string& bytes) {
  std::string reversed(bytes.size(), '\0');
  char* to = reversed.data();
  for (const char* from = bytes.data() + bytes.size(); from != bytes.data();) *to++ = *--from;
  return reversed;
}

}  // namespace millpond::testing

namespace millpond::tensor {

struct TensorStorage {
  std::vector<testing::OpaqueTensor> tensors;
};

}  // namespace millpond::tensor
