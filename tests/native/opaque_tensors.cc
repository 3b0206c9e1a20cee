#include "tests/native/opaque_tensors.h"

#include "native/tf/signature.h"
#include "native/tf/tensor_codec.h"

namespace millpond::tf {

TensorList::TensorList() : tensors_(std::make_unique<std::vector<tensorflow::Tensor>>()) {}
TensorList::~TensorList() = default;
TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;

size_t TensorList::size() const { return tensors_->size(); }

void TensorList::Reset(size_t size) {
  tensors_->clear();
  tensors_->resize(size);
}

int FindTensorSpec(const std::vector<TensorSpec>& specs, std::string_view name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

base::Status DecodeTensor(base::WireReader proto, const TensorSpec&, size_t index,
                          TensorList* tensors) {
  proto.AppendRest(&tensors->tensors()[index].bytes);
  return {};
}

size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding) {
  return tensors.tensors()[index].bytes.size();
}

void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding,
                  base::WireWriter* writer) {
  const std::string& bytes = tensors.tensors()[index].bytes;
  writer->Bytes(bytes.data(), bytes.size());
}

}  // namespace millpond::tf
