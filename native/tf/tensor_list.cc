#include "native/tensor/tensor_list.h"

#include "tensorflow/core/framework/tensor.h"

namespace millpond::tensor {

TensorList::TensorList() : tensors_(std::make_unique<std::vector<tensorflow::Tensor>>()) {}
TensorList::~TensorList() = default;
TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;

size_t TensorList::size() const { return tensors_->size(); }

void TensorList::Reset(size_t size) {
  tensors_->clear();
  tensors_->resize(size);
}

}  // namespace millpond::tensor
