#include "native/tf/signature.h"

#include <algorithm>

#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

TensorSpec MakeTensorSpec(const std::string& name, const tensorflow::TensorInfo& info) {
  TensorSpec spec;
  spec.name = name;
  spec.tensor_name = info.name();
  spec.dtype = info.dtype();
  spec.is_rank_known = info.has_tensor_shape() && !info.tensor_shape().unknown_rank();
  for (const auto& dim : info.tensor_shape().dim()) {
    spec.dims.push_back(dim.size() < 0 ? TensorSpec::kUnknownSize : dim.size());
  }
  return spec;
}

template <typename TensorInfoMap>
std::vector<TensorSpec> MakeTensorSpecs(const TensorInfoMap& infos) {
  std::vector<TensorSpec> specs;
  specs.reserve(infos.size());
  for (const auto& [name, info] : infos) specs.push_back(MakeTensorSpec(name, info));
  std::sort(specs.begin(), specs.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  return specs;
}

}  // namespace

Signature MakeSignature(const std::string& name, const tensorflow::SignatureDef& definition) {
  Signature signature;
  signature.name = name;
  signature.method_name = definition.method_name();
  signature.inputs = MakeTensorSpecs(definition.inputs());
  signature.outputs = MakeTensorSpecs(definition.outputs());
  return signature;
}

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

std::string DtypeName(int dtype) {
  if (!tensorflow::DataType_IsValid(dtype)) return "dtype " + std::to_string(dtype);
  const auto type = static_cast<tensorflow::DataType>(dtype);
  // Uses numpy's names, which clients use. TensorFlow's C++ has "float" and "double" for them.
  if (type == tensorflow::DT_FLOAT) return "float32";
  if (type == tensorflow::DT_DOUBLE) return "float64";
  return tensorflow::DataTypeString(type);
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

}  // namespace millpond::tf
