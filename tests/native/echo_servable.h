#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "native/servable/servable.h"
#include "native/tensor/dtype.h"
#include "tests/native/opaque_tensors.h"

namespace millpond::testing {

inline tensor::TensorSpec Spec(const std::string& name, int dtype, bool is_rank_known = false,
                               std::vector<int64_t> dims = {}) {
  tensor::TensorSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.is_rank_known = is_rank_known;
  spec.dims = std::move(dims);
  return spec;
}

// A servable that answers with its inputs: each signature's outputs are its inputs, under the names
// of the outputs. Its tensors are opaque_tensors.h's.
//
//   serving_default  rows: float32[?,3], words: string[...] -> a, b
//   of_DTYPE         x -> x, of any shape
//   complex          x: float32[...] -> x as complex64, which the open inference protocol has not
class EchoServable final : public servable::Servable {
 public:
  EchoServable() {
    Add({"serving_default",
         "",
         {Spec("rows", tensor::dtype::kFloat, true, {-1, 3}),
          Spec("words", tensor::dtype::kString)},
         {Spec("a", tensor::dtype::kFloat), Spec("b", tensor::dtype::kString)}});
    for (const int dtype : {1, 2, 3, 4, 5, 6, 7, 9, 10, 14, 17, 19, 22, 23}) {
      Add({"of_" + std::to_string(dtype), "", {Spec("x", dtype)}, {Spec("x", dtype)}});
    }
    Add({"complex", "", {Spec("x", tensor::dtype::kFloat)}, {Spec("x", kComplex64)}});
  }

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }
  base::Status Prepare(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet& outputs,
                   const tensor::RunContext&, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    run_count_ += 1;
    result->Reset(outputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (outputs.Contains(i))
        result->storage().tensors[outputs.Rank(i)] = inputs.storage().tensors[i];
    }
    return {};
  }

  int run_count() const { return run_count_; }

 private:
  static constexpr int kComplex64 = 8;

  void Add(tensor::Signature signature) { signatures_[signature.name] = std::move(signature); }

  const servable::ServableId id_{"echo", 7};
  tensor::SignatureMap signatures_;
  mutable std::atomic<int> run_count_{0};
};

}  // namespace millpond::testing
