#include "native/tensor/signature.h"

#include <algorithm>

#include "native/tensor/dtype.h"

namespace millpond::tensor {

int FindTensorSpec(const std::vector<TensorSpec>& specs, std::string_view name) {
  const auto found = std::lower_bound(
      specs.begin(), specs.end(), name,
      [](const TensorSpec& spec, std::string_view key) { return spec.name < key; });
  if (found == specs.end() || found->name != name) return -1;
  return static_cast<int>(found - specs.begin());
}

bool ShapeFits(const std::vector<int64_t>& dims, const TensorSpec& spec) {
  if (!spec.is_rank_known) return true;
  return std::equal(dims.begin(), dims.end(), spec.dims.begin(), spec.dims.end(),
                    [](int64_t size, int64_t wanted) {
                      return wanted == TensorSpec::kUnknownSize || wanted == size;
                    });
}

bool TensorFits(int dtype, const std::vector<int64_t>& dims, const TensorSpec& spec) {
  return dtype == spec.dtype && (!spec.has_checked_shape || ShapeFits(dims, spec));
}

std::string DescribeTensor(int dtype, bool is_rank_known, const std::vector<int64_t>& dims) {
  if (!is_rank_known) return DtypeName(dtype) + "[...]";
  std::string text = DtypeName(dtype) + "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ",";
    text += dims[i] == TensorSpec::kUnknownSize ? "?" : std::to_string(dims[i]);
  }
  return text + "]";
}

std::string DescribeTensor(const TensorSpec& spec) {
  return DescribeTensor(spec.dtype, spec.is_rank_known, spec.dims);
}

}  // namespace millpond::tensor
