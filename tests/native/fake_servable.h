#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "native/servable/servable.h"

namespace millpond::testing {

// The arguments of Servable::Run.
struct FakeRun {
  const tensor::Signature& signature;
  const tensor::OutputSet& outputs;
  const tensor::RunContext& context;
  const tensor::TensorList& inputs;
  tensor::TensorList* result;
};

// The servable of a test: it has an id and signatures, and a run is a call of a function, which any
// thread may make. Without a function a run succeeds and returns nothing. Needs no definition of
// TensorStorage.
class FakeServable : public servable::Servable {
 public:
  using RunFunction = std::function<base::Status(const FakeRun&)>;

  explicit FakeServable(servable::ServableId id,
                        const std::vector<tensor::Signature>& signatures = {}, RunFunction run = {})
      : id_(std::move(id)), run_(std::move(run)) {
    for (const tensor::Signature& signature : signatures) signatures_[signature.name] = signature;
  }

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return signature_def_map_; }
  base::Status MakeCallable(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& context, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    run_count_ += 1;
    return run_ ? run_({signature, outputs, context, inputs, result}) : base::Status();
  }

  int run_count() const { return run_count_; }

 protected:
  // For a fake whose test changes the signatures before the first request.
  tensor::SignatureMap& mutable_signatures() { return signatures_; }

 private:
  const servable::ServableId id_;
  tensor::SignatureMap signatures_;
  const RunFunction run_;
  const std::string signature_def_map_ = "the signatures";
  mutable std::atomic<int> run_count_{0};
};

// The step of a test before a run: it may watch the run, hold it, or return the error that ends it.
using Script = std::function<base::Status(const tensor::RunContext&)>;

// Returns a run that calls `script`, which may be empty, and then `run`.
inline FakeServable::RunFunction AfterScript(Script script, FakeServable::RunFunction run) {
  return [script = std::move(script), run = std::move(run)](const FakeRun& arguments) {
    if (script) MILLPOND_RETURN_IF_ERROR(script(arguments.context));
    return run(arguments);
  };
}

// Returns the signature serving_default, x -> x_back, y, whose tensors all are like `spec`.
inline tensor::Signature XToXBackAndY(const tensor::TensorSpec& spec = {}) {
  tensor::Signature signature{"serving_default", "", {spec}, {spec, spec}};
  signature.inputs[0].name = "x";
  signature.outputs[0].name = "x_back";
  signature.outputs[1].name = "y";
  return signature;
}

// A run that returns each input as the output of the same index. A template, so that it fits either
// definition of TensorStorage; the caller includes one.
template <typename Run>
base::Status EchoInputs(const Run& run) {
  run.result->Reset(run.outputs.size());
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    if (!run.outputs.Contains(i)) continue;
    run.result->storage().tensors[run.outputs.Rank(i)] = run.inputs.storage().tensors[i];
  }
  return {};
}

}  // namespace millpond::testing
