#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"
#include "tests/native/fake_servable.h"
#include "tests/native/opaque_tensors.h"

namespace millpond::testing {

using Tensors = std::vector<OpaqueTensor>;

inline tensor::TensorSpec Spec(const std::string& name, int dtype, std::vector<int64_t> dims) {
  return {name, name + ":0", dtype, true, std::move(dims)};
}
inline tensor::TensorSpec AnyShapeSpec(const std::string& name, int dtype) {
  return {name, name + ":0", dtype, false, {}};
}

template <typename T>
OpaqueTensor NumberTensor(int dtype, std::vector<int64_t> dims, const std::vector<T>& values) {
  OpaqueTensor tensor;
  tensor.dtype = dtype;
  tensor.dims = std::move(dims);
  for (const T value : values) {
    tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return tensor;
}

inline OpaqueTensor StringTensor(std::vector<int64_t> dims, std::vector<std::string> strings) {
  OpaqueTensor tensor;
  tensor.dtype = tensor::dtype::kString;
  tensor.dims = std::move(dims);
  tensor.strings = std::move(strings);
  return tensor;
}

template <typename T>
std::vector<T> NumbersOf(const OpaqueTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// A servable over the tests' own tensors: it returns `answer`, or else its inputs.
class PlainServable final : public FakeServable {
 public:
  explicit PlainServable(const std::vector<tensor::Signature>& signatures)
      : FakeServable({"m", 7}, signatures, [this](const FakeRun& run) { return Answer(run); }) {}

  void CheckShapes() {
    for (auto& [name, signature] : mutable_signatures()) {
      for (tensor::TensorSpec& input : signature.inputs) input.has_checked_shape = true;
    }
  }

  std::function<base::Status(const Tensors& inputs, Tensors* outputs)> answer;

  // The inputs of the last run.
  const Tensors& seen() const { return seen_; }
  const std::string& run_signature() const { return run_signature_; }

 private:
  base::Status Answer(const FakeRun& run) const {
    seen_ = run.inputs.storage().tensors;
    run_signature_ = run.signature.name;
    Tensors outputs = seen_;
    if (answer) MILLPOND_RETURN_IF_ERROR(answer(seen_, &outputs));
    run.result->Reset(outputs.size());
    run.result->storage().tensors = outputs;
    return {};
  }

  mutable Tensors seen_;
  mutable std::string run_signature_;
};

}  // namespace millpond::testing
