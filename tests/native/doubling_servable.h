#pragma once

#include <utility>
#include <vector>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/fake_servable.h"
#include "tests/native/tensors.h"

namespace millpond::testing {

// x: float32[?] -> x_back, y (twice x), unless `script` returns an error.
class DoublingServable final : public FakeServable {
 public:
  explicit DoublingServable(Script script = {}, bool has_checked_shapes = false)
      : FakeServable({"m", 7}, {XToXBackAndY(SpecOf(has_checked_shapes))},
                     AfterScript(std::move(script), Double)) {}

  base::Status MakeCallable(const tensor::Signature&,
                            const tensor::OutputSet& outputs) const override {
    made_.push_back(outputs);
    return {};
  }

  const std::vector<tensor::OutputSet>& made() const { return made_; }

 private:
  static tensor::TensorSpec SpecOf(bool has_checked_shapes) {
    tensor::TensorSpec spec = AnyShapeOf(tensorflow::DT_FLOAT);
    spec.is_rank_known = true;
    spec.has_checked_shape = has_checked_shapes;
    spec.dims = {tensor::TensorSpec::kUnknownSize};
    return spec;
  }
  static base::Status Double(const FakeRun& run) {
    const tensorflow::Tensor& x = run.inputs.storage().tensors[0];
    tensorflow::Tensor y(tensorflow::DT_FLOAT, x.shape());
    for (int64_t i = 0; i < x.NumElements(); ++i) y.flat<float>()(i) = 2 * x.flat<float>()(i);
    run.result->Reset(run.outputs.size());
    auto& tensors = run.result->storage().tensors;
    if (run.outputs.Contains(0)) tensors[run.outputs.Rank(0)] = x;
    if (run.outputs.Contains(1)) tensors[run.outputs.Rank(1)] = y;
    return {};
  }

  mutable std::vector<tensor::OutputSet> made_;
};

}  // namespace millpond::testing
