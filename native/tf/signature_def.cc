#include "native/tf/signature_def.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/protobuf/struct.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::TensorInfo;

tensor::TensorSpec MakeTensorSpec(const std::string& name, const TensorInfo& info) {
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

bool IsComposite(const TensorInfo& info) {
  return info.encoding_case() == TensorInfo::kCooSparse ||
         info.encoding_case() == TensorInfo::kCompositeTensor;
}

// The words of a composite tensor: its class in TensorFlow, and its dense parts there.
struct CompositeWords {
  std::string kind;
  std::string parts;
};

CompositeWords WordsOf(const std::string& name, const TensorInfo& info) {
  const std::string sparse = name + ".indices, " + name + ".values and " + name + ".dense_shape";
  if (info.encoding_case() == TensorInfo::kCooSparse) return {"a SparseTensor", sparse};
  const auto& type = info.composite_tensor().type_spec();
  if (type.type_spec_class() == tensorflow::TypeSpecProto::SPARSE_TENSOR_SPEC) {
    return {"a SparseTensor", sparse};
  }
  if (type.type_spec_class() == tensorflow::TypeSpecProto::RAGGED_TENSOR_SPEC) {
    return {"a RaggedTensor",
            name + ".flat_values and " + name + ".nested_row_splits, or " + name + ".to_tensor()"};
  }
  return {"a composite tensor (" + type.type_spec_class_name() + ")", "its components"};
}

std::string Describe(const char* kind, const std::string& name, const std::string& signature,
                     const CompositeWords& words, const TensorInfo& info) {
  return std::string(kind) + " '" + name + "' of signature '" + signature + "' is " + words.kind +
         " of " + tensor::DtypeName(info.dtype()) +
         ", and requests and replies hold dense tensors ";
}

tensor::CompositeSpec MakeComposite(const std::string& name, const std::string& signature,
                                    const TensorInfo& info) {
  const CompositeWords words = WordsOf(name, info);
  return {name, Describe("output", name, signature, words, info) +
                    "only: export its parts as outputs of their own (" + words.parts + ")"};
}

template <typename Specs>
void SortByName(Specs* specs) {
  std::sort(specs->begin(), specs->end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

void SetDefault(const tensorflow::TensorProto& proto, tensor::TensorSpec* spec) {
  tensorflow::Tensor value;
  if (!value.FromProto(proto)) {
    spec->default_fault = "its bytes are not a tensor";
    return;
  }
  if (value.dtype() != spec->dtype) {
    spec->default_fault = "it is " + tensor::DtypeName(value.dtype()) + ", and the input is " +
                          tensor::DescribeTensor(*spec);
    return;
  }
  auto list = std::make_shared<tensor::TensorList>();
  list->Reset(1);
  list->storage().tensors[0] = std::move(value);
  spec->default_value = std::move(list);
}

void SetInputs(const tensorflow::SignatureDef& definition, tensor::Signature* signature) {
  for (const auto& [name, info] : definition.inputs()) {
    if (IsComposite(info)) {
      const CompositeWords words = WordsOf(name, info);
      signature->obstacle = Describe("input", name, signature->name, words, info) +
                            "only: export a signature that takes its parts (" + words.parts +
                            ") as inputs of their own";
      continue;
    }
    tensor::TensorSpec spec = MakeTensorSpec(name, info);
    const auto found = definition.defaults().find(name);
    if (found != definition.defaults().end()) SetDefault(found->second, &spec);
    signature->inputs.push_back(std::move(spec));
  }
  SortByName(&signature->inputs);
}

void SetOutputs(const tensorflow::SignatureDef& definition, tensor::Signature* signature) {
  for (const auto& [name, info] : definition.outputs()) {
    if (IsComposite(info)) {
      signature->composite_outputs.push_back(MakeComposite(name, signature->name, info));
    } else {
      signature->outputs.push_back(MakeTensorSpec(name, info));
    }
  }
  SortByName(&signature->outputs);
  SortByName(&signature->composite_outputs);
  if (signature->outputs.empty() && !signature->composite_outputs.empty() &&
      signature->obstacle.empty()) {
    signature->obstacle = signature->composite_outputs.front().remedy;
  }
}

}  // namespace

tensor::Signature MakeSignature(const std::string& name,
                                const tensorflow::SignatureDef& definition) {
  tensor::Signature signature;
  signature.name = name;
  signature.method_name = definition.method_name();
  SetInputs(definition, &signature);
  SetOutputs(definition, &signature);
  return signature;
}

}  // namespace millpond::tf
