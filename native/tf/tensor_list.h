#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tensorflow {
class Tensor;
}  // namespace tensorflow

namespace millpond::tf {

// The tensors of one request or reply, in the order of a signature's inputs or outputs. It hides
// tensorflow::Tensor from the rungs above, whose files then compile without TensorFlow's headers.
// Not thread-safe; a thread may keep one and use it again, which keeps the vector's memory.
class TensorList {
 public:
  TensorList();
  ~TensorList();
  TensorList(TensorList&&) noexcept;
  TensorList& operator=(TensorList&&) noexcept;

  size_t size() const;
  // `size` empty tensors; frees what was held.
  void Reset(size_t size);

  std::vector<tensorflow::Tensor>& tensors() { return *tensors_; }
  const std::vector<tensorflow::Tensor>& tensors() const { return *tensors_; }

 private:
  std::unique_ptr<std::vector<tensorflow::Tensor>> tensors_;
};

}  // namespace millpond::tf
