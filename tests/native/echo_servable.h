#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"
#include "tests/native/fake_servable.h"
#include "tests/native/opaque_tensors.h"

namespace millpond::testing {

inline tensor::TensorSpec EchoSpec(const std::string& name, int dtype, bool is_rank_known = false,
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
class EchoServable final : public FakeServable {
 public:
  EchoServable() : FakeServable({"echo", 7}, Signatures(), EchoInputs<FakeRun>) {}

 private:
  static constexpr int kComplex64 = 8;

  static std::vector<tensor::Signature> Signatures() {
    std::vector<tensor::Signature> signatures = {
        {"serving_default",
         "",
         {EchoSpec("rows", tensor::dtype::kFloat, true, {-1, 3}),
          EchoSpec("words", tensor::dtype::kString)},
         {EchoSpec("a", tensor::dtype::kFloat), EchoSpec("b", tensor::dtype::kString)}},
        {"complex", "", {EchoSpec("x", tensor::dtype::kFloat)}, {EchoSpec("x", kComplex64)}}};
    for (const int dtype : {1, 2, 3, 4, 5, 6, 7, 9, 10, 14, 17, 19, 22, 23}) {
      signatures.push_back(
          {"of_" + std::to_string(dtype), "", {EchoSpec("x", dtype)}, {EchoSpec("x", dtype)}});
    }
    return signatures;
  }
};

}  // namespace millpond::testing
