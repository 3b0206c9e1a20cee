#include "native/tf/signature_def.h"

#include <algorithm>
#include <vector>

#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

tensor::TensorSpec MakeTensorSpec(const std::string& name, const tensorflow::TensorInfo& info) {
  tensor::TensorSpec spec;
  spec.name = name;
  spec.tensor_name = info.name();
  spec.dtype = info.dtype();
  spec.is_rank_known = info.has_tensor_shape() && !info.tensor_shape().unknown_rank();
  for (const auto& dim : info.tensor_shape().dim()) {
    spec.dims.push_back(dim.size() < 0 ? tensor::TensorSpec::kUnknownSize : dim.size());
  }
  return spec;
}

template <typename TensorInfoMap>
std::vector<tensor::TensorSpec> MakeTensorSpecs(const TensorInfoMap& infos) {
  std::vector<tensor::TensorSpec> specs;
  specs.reserve(infos.size());
  for (const auto& [name, info] : infos) specs.push_back(MakeTensorSpec(name, info));
  std::sort(
      specs.begin(), specs.end(),
      [](const tensor::TensorSpec& a, const tensor::TensorSpec& b) { return a.name < b.name; });
  return specs;
}

}  // namespace

tensor::Signature MakeSignature(const std::string& name,
                                const tensorflow::SignatureDef& definition) {
  tensor::Signature signature;
  signature.name = name;
  signature.method_name = definition.method_name();
  signature.inputs = MakeTensorSpecs(definition.inputs());
  signature.outputs = MakeTensorSpecs(definition.outputs());
  return signature;
}

}  // namespace millpond::tf
