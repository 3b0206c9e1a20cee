#include "native/tf/callable.h"

#include <algorithm>
#include <string>

#include "native/tf/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace millpond::tf {

using base::Status;

Callable::Callable(tensorflow::Session* session, const Signature& signature) : session_(session) {
  tensorflow::CallableOptions options;
  options.mutable_run_options()->set_inter_op_thread_pool(-1);
  for (const TensorSpec& input : signature.inputs) options.add_feed(input.tensor_name);
  std::vector<std::string> fetches;
  for (const TensorSpec& output : signature.outputs) {
    const auto input = std::find(options.feed().begin(), options.feed().end(), output.tensor_name);
    if (input != options.feed().end()) {
      output_sources_.push_back({true, static_cast<size_t>(input - options.feed().begin())});
      continue;
    }
    // Two outputs may be two names of one tensor.
    const auto fetch = std::find(fetches.begin(), fetches.end(), output.tensor_name);
    output_sources_.push_back({false, static_cast<size_t>(fetch - fetches.begin())});
    if (fetch == fetches.end()) fetches.push_back(output.tensor_name);
  }
  for (const std::string& fetch : fetches) options.add_fetch(fetch);
  made_ = FromTensorFlow(session->MakeCallable(options, &handle_),
                         "signature '" + signature.name + "'");
}

Callable::~Callable() {
  if (made_.ok()) session_->ReleaseCallable(handle_).IgnoreError();
}

Status Callable::Run(const TensorList& inputs, TensorList* outputs) const {
  if (!made_.ok()) return made_;
  std::vector<tensorflow::Tensor> fetched;
  const absl::Status ran = session_->RunCallable(handle_, inputs.tensors(), &fetched, nullptr);
  if (!ran.ok()) return FromTensorFlow(ran);
  outputs->Reset(output_sources_.size());
  for (size_t i = 0; i < output_sources_.size(); ++i) {
    const OutputSource source = output_sources_[i];
    outputs->tensors()[i] =
        source.is_input ? inputs.tensors()[source.index] : fetched[source.index];
  }
  return {};
}

}  // namespace millpond::tf
