#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tensorflow {
class Tensor;
}  // namespace tensorflow

namespace millpond::tensor {

// The tensors of one request or reply, in the order of a signature's inputs or outputs. Hides
// tensorflow::Tensor from the rungs above, so that their files compile without TensorFlow's
// headers. Not thread-safe. A thread may keep a list and reuse it, which keeps the vector's memory.
class TensorList {
 public:
  TensorList();
  ~TensorList();
  TensorList(TensorList&&) noexcept;
  TensorList& operator=(TensorList&&) noexcept;

  size_t size() const;
  // Replaces the tensors with `size` empty tensors.
  void Reset(size_t size);

  std::vector<tensorflow::Tensor>& tensors() { return *tensors_; }
  const std::vector<tensorflow::Tensor>& tensors() const { return *tensors_; }

 private:
  std::unique_ptr<std::vector<tensorflow::Tensor>> tensors_;
};

}  // namespace millpond::tensor
