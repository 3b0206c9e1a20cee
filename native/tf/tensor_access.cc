#include "native/tensor/tensor_access.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "native/tensor/dtype.h"
#include "native/tensor/signature.h"
#include "native/tf/tensor_allocation.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/types.h"

namespace millpond::tensor {
namespace {

using base::Status;
using tensorflow::Tensor;
using tensorflow::tstring;
using tf::AllocateTensor;
using tf::CheckTensorBytes;
using tf::CountElements;

static_assert(dtype::kFloat == tensorflow::DT_FLOAT && dtype::kDouble == tensorflow::DT_DOUBLE);
static_assert(dtype::kInt8 == tensorflow::DT_INT8 && dtype::kUint8 == tensorflow::DT_UINT8);
static_assert(dtype::kInt16 == tensorflow::DT_INT16 && dtype::kUint16 == tensorflow::DT_UINT16);
static_assert(dtype::kInt32 == tensorflow::DT_INT32 && dtype::kUint32 == tensorflow::DT_UINT32);
static_assert(dtype::kInt64 == tensorflow::DT_INT64 && dtype::kUint64 == tensorflow::DT_UINT64);
static_assert(dtype::kHalf == tensorflow::DT_HALF && dtype::kBfloat16 == tensorflow::DT_BFLOAT16);
static_assert(dtype::kBool == tensorflow::DT_BOOL && dtype::kString == tensorflow::DT_STRING);

Status CheckDtype(int dtype) {
  if (dtype == dtype::kString || ElementBytes(dtype) > 0) return {};
  return base::InvalidArgument("the elements of " + DtypeName(dtype) +
                               " are neither plain numbers nor strings");
}

void MoveElements(int64_t count, Tensor* from, Tensor* to) {
  if (count == 0) return;
  if (from->dtype() == tensorflow::DT_STRING) {
    auto* first = from->flat<tstring>().data();
    std::move(first, first + count, to->flat<tstring>().data());
    return;
  }
  std::memcpy(to->data(), from->data(), static_cast<size_t>(count) * ElementBytes(from->dtype()));
}

tstring& StringElement(size_t index, int64_t element, TensorList* tensors) {
  return static_cast<tstring*>(tensors->storage().tensors[index].data())[element];
}

}  // namespace

Status MakeTensor(int dtype, const std::vector<int64_t>& dims, size_t index, TensorList* tensors) {
  MILLPOND_RETURN_IF_ERROR(CheckDtype(dtype));
  const base::StatusOr<int64_t> count = CountElements(dtype, dims);
  if (!count.ok()) return count.status();
  MILLPOND_RETURN_IF_ERROR(CheckTensorBytes(dtype, dims, count.value()));
  return AllocateTensor(dtype, dims, &tensors->storage().tensors[index]);
}

Status ExtendTensor(int64_t capacity, int64_t used_count, size_t index, TensorList* tensors) {
  Tensor& tensor = tensors->storage().tensors[index];
  Tensor smaller = tensor;
  const Status made = MakeTensor(tensor.dtype(), {capacity}, index, tensors);
  if (made.ok()) {
    MoveElements(used_count, &smaller, &tensor);
  } else {
    tensor = std::move(smaller);
  }
  return made;
}

Status ShapeTensor(const std::vector<int64_t>& dims, size_t index, TensorList* tensors) {
  Tensor& tensor = tensors->storage().tensors[index];
  const base::StatusOr<int64_t> count = CountElements(tensor.dtype(), dims);
  if (!count.ok()) return count.status();
  tensorflow::TensorShape shape;
  const auto made = tensorflow::TensorShapeUtils::MakeShape(dims, &shape);
  if (!made.ok()) return base::InvalidArgument(std::string(made.message()));
  if (count.value() > tensor.NumElements()) {
    return base::Internal("a tensor of " + std::to_string(tensor.NumElements()) +
                          " elements cannot become " + DescribeTensor(tensor.dtype(), true, dims));
  }
  Tensor shaped(tensor.dtype());
  const bool is_whole = count.value() == tensor.NumElements();
  if (!shaped.CopyFrom(is_whole ? tensor : tensor.Slice(0, count.value()), shape)) {
    return base::Internal("no " + DescribeTensor(tensor.dtype(), true, dims) + " of a tensor");
  }
  tensor = std::move(shaped);
  return {};
}

void* MutableElements(size_t index, TensorList* tensors) {
  return tensors->storage().tensors[index].data();
}

Status SetString(size_t index, int64_t element, std::string_view value, TensorList* tensors) {
  MILLPOND_RETURN_IF_ERROR(tf::ChargeStrings(1, value.size()));
  StringElement(index, element, tensors).assign(value.data(), value.size());
  return {};
}

base::StatusOr<char*> ResizeString(size_t index, int64_t element, size_t size,
                                   TensorList* tensors) {
  MILLPOND_RETURN_IF_ERROR(tf::ChargeStrings(1, size));
  tstring& string = StringElement(index, element, tensors);
  string.resize_uninitialized(size);
  return string.mdata();
}

std::string_view StringAt(const TensorList& tensors, size_t index, int64_t element) {
  const tstring& string =
      static_cast<const tstring*>(tensors.storage().tensors[index].data())[element];
  return {string.data(), string.size()};
}

TensorView ViewTensor(const TensorList& tensors, size_t index) {
  const Tensor& tensor = tensors.storage().tensors[index];
  TensorView view;
  view.dtype = tensor.dtype();
  for (int i = 0; i < tensor.dims(); ++i) view.dims.push_back(tensor.dim_size(i));
  view.element_count = tensor.NumElements();
  const size_t bytes = static_cast<size_t>(view.element_count) * ElementBytes(view.dtype);
  if (bytes > 0) view.bytes = {static_cast<const char*>(tensor.data()), bytes};
  return view;
}

int64_t FirstSize(const TensorList& tensors, size_t index) {
  const Tensor& tensor = tensors.storage().tensors[index];
  return tensor.dims() == 0 ? 1 : tensor.dim_size(0);
}

TensorList ShareTensors(const TensorList& tensors) {
  TensorList shared;
  shared.storage().tensors = tensors.storage().tensors;
  shared.storage().charge = tensors.storage().charge;
  return shared;
}

void ShareTensor(const TensorList& from, size_t from_index, size_t index, TensorList* tensors) {
  tensors->storage().tensors[index] = from.storage().tensors[from_index];
}

bool IsSameTensor(const TensorList& a, size_t index_a, const TensorList& b, size_t index_b) {
  const Tensor& one = a.storage().tensors[index_a];
  return one.SharesBufferWith(b.storage().tensors[index_b]);
}

TensorList ShareRows(const TensorList& tensors, int64_t first, int64_t count) {
  TensorList shared;
  shared.storage().tensors.reserve(tensors.size());
  for (const Tensor& tensor : tensors.storage().tensors) {
    shared.storage().tensors.push_back(tensor.Slice(first, first + count));
  }
  shared.storage().charge = tensors.storage().charge;
  return shared;
}

}  // namespace millpond::tensor
