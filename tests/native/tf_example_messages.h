#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/tensor/dtype.h"
#include "tests/native/fake_servable.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

// The bytes of a tensorflow.serving.Input of an ExampleList. Examples are any bytes here.
inline WireMessage ExampleListInput(const std::vector<std::string>& examples) {
  WireMessage list;
  for (const std::string& example : examples) list.Bytes(1, example);
  return WireMessage().Message(1, list);
}

// Returns the same of an ExampleListWithContext.
inline WireMessage ContextInput(const std::string& context,
                                const std::vector<std::string>& examples) {
  WireMessage list;
  for (const std::string& example : examples) list.Bytes(1, example);
  return WireMessage().Message(2, list.Bytes(2, context));
}

// A ClassificationRequest or a RegressionRequest.
inline std::string ExampleMessage(const WireMessage& model_spec, const WireMessage& input) {
  return WireMessage().Message(1, model_spec).Message(2, input).bytes();
}

inline OpaqueTensor FloatTensor(const std::vector<float>& values,
                                const std::vector<int64_t>& dims) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {bytes, tensor::dtype::kFloat, dims, {}};
}

inline OpaqueTensor StringTensor(const std::vector<std::string>& values,
                                 const std::vector<int64_t>& dims) {
  return {"", tensor::dtype::kString, dims, values};
}

inline tensor::TensorSpec SpecOf(const std::string& name, int dtype = tensor::dtype::kString) {
  tensor::TensorSpec spec;
  spec.name = name;
  spec.tensor_name = "examples:0";
  spec.dtype = dtype;
  spec.is_rank_known = true;
  spec.dims = {tensor::TensorSpec::kUnknownSize};
  return spec;
}

// A servable with signatures on serialized examples; a test sets its answers.
class ExampleServable final : public FakeServable {
 public:
  using Answer = std::vector<OpaqueTensor>;

  ExampleServable()
      : FakeServable({"m", 7}, {}, [this](const FakeRun& run) { return AnswerTo(run); }) {}

  // `outputs` are sorted by name; each run returns `answer`, with one tensor for each.
  tensor::Signature& Add(const std::string& name, const std::vector<std::string>& outputs,
                         Answer answer) {
    tensor::Signature signature;
    signature.name = name;
    signature.inputs = {SpecOf("inputs")};
    for (const std::string& output : outputs) signature.outputs.push_back(SpecOf(output));
    answers_[name] = std::move(answer);
    return mutable_signatures()[name] = signature;
  }

  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& run,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override {
    together_count += 1;
    if (!can_run_together) return std::nullopt;
    results->resize(signatures.size());
    for (size_t i = 0; i < signatures.size(); ++i) {
      MILLPOND_RETURN_IF_ERROR(Run(*signatures[i], {}, run, inputs, &(*results)[i]));
    }
    return base::Status();
  }

  bool can_run_together = false;
  mutable int together_count = 0;
  // The examples of each run.
  mutable std::vector<std::vector<std::string>> runs;
  // The flag that cancels the last run.
  mutable const std::atomic<bool>* cancellation = nullptr;
  base::Status fails_with;

 private:
  base::Status AnswerTo(const FakeRun& run) const {
    runs.push_back(run.inputs.storage().tensors[0].strings);
    cancellation = run.context.is_cancelled;
    if (!fails_with.ok()) return fails_with;
    const Answer& answer = answers_.at(run.signature.name);
    run.result->Reset(answer.size());
    run.result->storage().tensors = answer;
    return {};
  }

  std::map<std::string, Answer> answers_;
};

}  // namespace millpond::testing
