#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "native/servable/servable.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/tensors.h"

namespace millpond::testing {

// x: float32[?] -> x_back, y (twice x), unless `script` returns an error.
class DoublingServable final : public servable::Servable {
 public:
  using Script = std::function<base::Status(const tensor::RunContext&)>;

  explicit DoublingServable(Script script = {}, bool has_checked_shapes = false)
      : script_(std::move(script)) {
    tensor::TensorSpec spec = AnyShapeOf(tensorflow::DT_FLOAT);
    spec.is_rank_known = true;
    spec.has_checked_shape = has_checked_shapes;
    spec.dims = {tensor::TensorSpec::kUnknownSize};
    tensor::Signature signature{"serving_default", "", {spec}, {spec, spec}};
    signature.inputs[0].name = "x";
    signature.outputs[0].name = "x_back";
    signature.outputs[1].name = "y";
    signatures_[signature.name] = signature;
  }

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }

  base::Status Prepare(const tensor::Signature&, const tensor::OutputSet& outputs) const override {
    prepared_.push_back(outputs);
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    run_count_ += 1;
    if (script_) MILLPOND_RETURN_IF_ERROR(script_(run));
    const tensorflow::Tensor& x = inputs.storage().tensors[0];
    tensorflow::Tensor y(tensorflow::DT_FLOAT, x.shape());
    for (int64_t i = 0; i < x.NumElements(); ++i) y.flat<float>()(i) = 2 * x.flat<float>()(i);
    result->Reset(outputs.size());
    if (outputs.Contains(0)) result->storage().tensors[outputs.Rank(0)] = x;
    if (outputs.Contains(1)) result->storage().tensors[outputs.Rank(1)] = y;
    return {};
  }

  int run_count() const { return run_count_; }
  const std::vector<tensor::OutputSet>& prepared() const { return prepared_; }

 private:
  const servable::ServableId id_{"m", 7};
  const Script script_;
  tensor::SignatureMap signatures_;
  mutable std::atomic<int> run_count_{0};
  mutable std::vector<tensor::OutputSet> prepared_;
};

}  // namespace millpond::testing
