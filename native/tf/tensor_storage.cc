#include "native/tf/tensor_storage.h"

namespace millpond::tensor {

TensorList::TensorList() : storage_(std::make_unique<TensorStorage>()) {}
TensorList::~TensorList() = default;
TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;

size_t TensorList::size() const { return storage_->tensors.size(); }

void TensorList::Reset(size_t size) {
  storage_->tensors.clear();
  storage_->tensors.resize(size);
  storage_->charge = nullptr;
}

}  // namespace millpond::tensor
