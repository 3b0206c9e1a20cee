#include "tests/native/opaque_tensors.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/tensor/dtype.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_access.h"
#include "native/tensor/tensor_codec.h"

namespace millpond::tensor {

TensorList::TensorList() : storage_(std::make_unique<TensorStorage>()) {}
TensorList::~TensorList() = default;
TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;

size_t TensorList::size() const { return storage_->tensors.size(); }

void TensorList::Reset(size_t size) {
  storage_->tensors.clear();
  storage_->tensors.resize(size);
}

base::Status DecodeTensor(base::WireReader proto, const TensorSpec& spec, size_t index,
                          TensorList* tensors) {
  testing::OpaqueTensor& tensor = tensors->storage().tensors[index];
  proto.AppendRest(&tensor.bytes);
  constexpr size_t kMarkBytes = sizeof testing::kRowsMark - 1;
  if (tensor.bytes.compare(0, kMarkBytes, testing::kRowsMark) != 0) return {};
  const size_t element_bytes = ElementBytes(spec.dtype);
  if (element_bytes == 0) return base::InvalidArgument("rows need a dtype with a size");
  tensor.bytes.erase(0, kMarkBytes);
  tensor.dtype = spec.dtype;
  tensor.dims = {static_cast<int64_t>(tensor.bytes.size() / element_bytes)};
  return {};
}

size_t EncodedTensorBytes(const TensorList& tensors, size_t index, TensorEncoding,
                          base::ReplyBuffer*) {
  const testing::OpaqueTensor& tensor = tensors.storage().tensors[index];
  const auto add = [](size_t sum, const std::string& text) { return sum + text.size(); };
  return std::accumulate(tensor.strings.begin(), tensor.strings.end(), tensor.bytes.size(), add);
}

void EncodeTensor(const TensorList& tensors, size_t index, TensorEncoding, base::ReplyBuffer*,
                  base::WireWriter* writer) {
  const testing::OpaqueTensor& tensor = tensors.storage().tensors[index];
  writer->Bytes(tensor.bytes.data(), tensor.bytes.size());
  for (const std::string& text : tensor.strings) writer->Bytes(text.data(), text.size());
}

namespace {

constexpr size_t kStringBytes = 24;  // as TensorFlow's

int64_t CountOf(const std::vector<int64_t>& dims) {
  // The sizes beside a 0 may have a product beyond int64.
  if (std::count(dims.begin(), dims.end(), 0) > 0) return 0;
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

bool ArePossible(const std::vector<int64_t>& dims) {
  constexpr size_t kDimsMax = 254;
  int64_t count = 1;
  return dims.size() <= kDimsMax && std::all_of(dims.begin(), dims.end(), [&](int64_t size) {
           return size >= 0 && !__builtin_mul_overflow(count, size, &count);
         });
}

}  // namespace

base::Status MakeTensor(int dtype, const std::vector<int64_t>& dims, size_t index,
                        TensorList* tensors) {
  const bool is_string = dtype == dtype::kString;
  if ((!is_string && ElementBytes(dtype) == 0) || !ArePossible(dims)) {
    return base::InvalidArgument(DescribeTensor(dtype, true, dims));
  }
  const auto count = static_cast<size_t>(CountOf(dims));
  const size_t element_bytes = is_string ? kStringBytes : ElementBytes(dtype);
  if (count > static_cast<size_t>(base::kMaxTensorBytes) / element_bytes) {
    return {base::Code::kResourceExhausted, DescribeTensor(dtype, true, dims)};
  }
  // As TensorFlow's tensors do.
  if (!base::ShareScope::Add(static_cast<int64_t>(count * element_bytes))) {
    return base::ShareScope::NoMemoryFor(DescribeTensor(dtype, true, dims));
  }
  testing::OpaqueTensor& tensor = tensors->storage().tensors[index];
  tensor = {std::string(is_string ? 0 : count * element_bytes, '\0'), dtype, dims, {}};
  if (is_string) tensor.strings.resize(count);
  return {};
}

base::Status ExtendTensor(int64_t capacity, int64_t used_count, size_t index, TensorList* tensors) {
  const testing::OpaqueTensor smaller = tensors->storage().tensors[index];
  MILLPOND_RETURN_IF_ERROR(MakeTensor(smaller.dtype, {capacity}, index, tensors));
  testing::OpaqueTensor& tensor = tensors->storage().tensors[index];
  if (smaller.dtype == dtype::kString) {
    std::copy_n(smaller.strings.begin(), used_count, tensor.strings.begin());
  } else {
    smaller.bytes.copy(tensor.bytes.data(), used_count * ElementBytes(smaller.dtype));
  }
  return {};
}

base::Status ShapeTensor(const std::vector<int64_t>& dims, size_t index, TensorList* tensors) {
  testing::OpaqueTensor& tensor = tensors->storage().tensors[index];
  if (CountOf(dims) > CountOf(tensor.dims)) return base::Internal("too few elements");
  tensor.dims = dims;
  tensor.bytes.resize(CountOf(dims) * ElementBytes(tensor.dtype));
  if (tensor.dtype == dtype::kString) tensor.strings.resize(CountOf(dims));
  return {};
}

void* MutableElements(size_t index, TensorList* tensors) {
  return tensors->storage().tensors[index].bytes.data();
}

base::Status SetString(size_t index, int64_t element, std::string_view value, TensorList* tensors) {
  tensors->storage().tensors[index].strings[element] = value;
  return {};
}

base::StatusOr<char*> ResizeString(size_t index, int64_t element, size_t size,
                                   TensorList* tensors) {
  std::string& text = tensors->storage().tensors[index].strings[element];
  text.resize(size);
  return text.data();
}

std::string_view StringAt(const TensorList& tensors, size_t index, int64_t element) {
  return tensors.storage().tensors[index].strings[element];
}

TensorList ShareTensors(const TensorList& tensors) {
  TensorList shared;
  shared.storage().tensors = tensors.storage().tensors;
  return shared;
}

void ShareTensor(const TensorList& from, size_t from_index, size_t index, TensorList* tensors) {
  tensors->storage().tensors[index] = from.storage().tensors[from_index];
}

// An opaque tensor owns its elements, so equal ones count as the same.
bool IsSameTensor(const TensorList& a, size_t index_a, const TensorList& b, size_t index_b) {
  const testing::OpaqueTensor& one = a.storage().tensors[index_a];
  const testing::OpaqueTensor& other = b.storage().tensors[index_b];
  return one.dtype == other.dtype && one.dims == other.dims && one.bytes == other.bytes &&
         one.strings == other.strings;
}

TensorList ShareRows(const TensorList& tensors, int64_t first, int64_t count) {
  TensorList shared;
  for (const testing::OpaqueTensor& tensor : tensors.storage().tensors) {
    testing::OpaqueTensor rows{{}, tensor.dtype, tensor.dims, {}};
    rows.dims[0] = count;
    const auto row_elements = static_cast<size_t>(CountOf(rows.dims) / std::max<int64_t>(count, 1));
    const size_t begin = static_cast<size_t>(first) * row_elements;
    const size_t size = static_cast<size_t>(count) * row_elements;
    if (tensor.dtype == dtype::kString) {
      rows.strings.assign(tensor.strings.begin() + begin, tensor.strings.begin() + begin + size);
    } else {
      const size_t element_bytes = ElementBytes(tensor.dtype);
      rows.bytes = tensor.bytes.substr(begin * element_bytes, size * element_bytes);
    }
    shared.storage().tensors.push_back(std::move(rows));
  }
  return shared;
}

TensorView ViewTensor(const TensorList& tensors, size_t index) {
  const testing::OpaqueTensor& tensor = tensors.storage().tensors[index];
  return {tensor.dtype, tensor.dims, CountOf(tensor.dims), tensor.bytes};
}

int64_t FirstSize(const TensorList& tensors, size_t index) {
  const testing::OpaqueTensor& tensor = tensors.storage().tensors[index];
  return tensor.dims.empty() ? 1 : tensor.dims[0];
}

}  // namespace millpond::tensor
