#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "native/servable/servable.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::bench {

inline constexpr int64_t kIdCount = 26;
inline constexpr int64_t kDenseCount = 13;
inline constexpr size_t kWordBytes = 40;
inline constexpr int64_t kEmbeddingSize = 16;

// A servable whose signature has the first `input_count` of the CTR model's `dense` and `ids`, and
// of `words`, and two outputs. Its run does nothing.
class IdleServable final : public servable::Servable {
 public:
  explicit IdleServable(size_t input_count) {
    namespace dtype = tensor::dtype;
    tensor::Signature signature;
    signature.name = tensor::kDefaultSignatureName;
    signature.inputs = {Spec("dense", dtype::kFloat, {-1, kDenseCount}),
                        Spec("ids", dtype::kInt64, {-1, kIdCount}),
                        Spec("words", dtype::kString, {-1})};
    signature.inputs.resize(input_count);
    signature.outputs = {Spec("score", dtype::kFloat, {-1, 1}),
                         Spec("embedding", dtype::kFloat, {-1, kEmbeddingSize})};
    signatures_.emplace(signature.name, signature);
  }
  const tensor::Signature& signature() const { return signatures_.begin()->second; }

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }
  base::Status MakeCallable(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet&, const tensor::RunContext&,
                   const tensor::TensorList&, tensor::TensorList*) const override {
    return {};
  }

 private:
  static tensor::TensorSpec Spec(const std::string& name, int dtype, std::vector<int64_t> dims) {
    tensor::TensorSpec spec;
    spec.name = name;
    spec.tensor_name = name + ":0";
    spec.dtype = dtype;
    spec.is_rank_known = true;
    spec.dims = std::move(dims);
    return spec;
  }

  const servable::ServableId id_{"ctr", 1};
  tensor::SignatureMap signatures_;
};

// Makes the inputs of IdleServable, three with words and two without.
inline void MakeInputs(int64_t row_count, bool has_words, tensor::TensorList* inputs) {
  namespace dtype = tensor::dtype;
  inputs->Reset(has_words ? 3 : 2);
  bool is_made = tensor::MakeTensor(dtype::kFloat, {row_count, kDenseCount}, 0, inputs).ok() &&
                 tensor::MakeTensor(dtype::kInt64, {row_count, kIdCount}, 1, inputs).ok();
  if (has_words) is_made &= tensor::MakeTensor(dtype::kString, {row_count}, 2, inputs).ok();
  if (!is_made) std::abort();
  for (int64_t i = 0; has_words && i < row_count; ++i) {
    is_made &= tensor::SetString(2, i, std::string(kWordBytes, 'w'), inputs).ok();
  }
}

}  // namespace millpond::bench
