#include "native/tf/tensor_list.h"

#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

bool ShapeFits(const tensorflow::TensorShape& shape, const TensorSpec& spec) {
  if (!spec.is_rank_known) return true;
  if (shape.dims() != static_cast<int>(spec.dims.size())) return false;
  for (int i = 0; i < shape.dims(); ++i) {
    if (spec.dims[i] != TensorSpec::kUnknownSize && spec.dims[i] != shape.dim_size(i)) return false;
  }
  return true;
}

std::vector<int64_t> Dims(const tensorflow::TensorShape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape.dim_size(i));
  return dims;
}

}  // namespace

TensorList::TensorList() : tensors_(std::make_unique<std::vector<tensorflow::Tensor>>()) {}
TensorList::~TensorList() = default;
TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;

size_t TensorList::size() const { return tensors_->size(); }

void TensorList::Reset(size_t size) {
  tensors_->clear();
  tensors_->resize(size);
}

base::Status TensorList::CheckFits(size_t index, const TensorSpec& spec,
                                   const Signature& signature) const {
  const tensorflow::Tensor& tensor = (*tensors_)[index];
  if (tensor.dtype() == spec.dtype && ShapeFits(tensor.shape(), spec)) return {};
  return base::InvalidArgument("input '" + spec.name + "': expected " + DescribeTensor(spec) +
                               ", got " +
                               DescribeTensor(tensor.dtype(), true, Dims(tensor.shape())) +
                               "; signature '" + signature.name + "'");
}

}  // namespace millpond::tf
