#include "native/tf/callable.h"

#include <string>
#include <vector>

#include "native/tf/kernel_message.h"
#include "native/tf/run_executor.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace millpond::tf {

using base::Status;

Callable::Callable(tensorflow::Session* session, const tensor::Signature& signature,
                   const tensor::OutputSet& outputs)
    : session_(session), plan_(signature, outputs) {
  if (plan_.IsHandedThrough()) return;
  tensorflow::CallableOptions options;
  options.mutable_run_options()->set_inter_op_thread_pool(-1);
  for (const std::string& feed : plan_.feeds()) options.add_feed(feed);
  for (const std::string& fetch : plan_.fetches()) options.add_fetch(fetch);
  const MadeExecutors executors;
  made_ = FromTensorFlow(session->MakeCallable(options, &handle_),
                         "signature '" + signature.name + "'");
  InOrderExecutor* const executor = executors.OnlyInOrder();
  if (made_.ok() && executor != nullptr && !executor->IsFedWithResource()) {
    direct_ = std::make_unique<const DirectRun>(executor, session, plan_.fetches());
  }
}

Callable::~Callable() {
  if (IsOfSession()) session_->ReleaseCallable(handle_).IgnoreError();
}

Status Callable::Run(const tensor::TensorList& inputs, tensor::TensorList* result) const {
  if (!made_.ok()) return made_;
  std::vector<tensorflow::Tensor> fetched;
  if (IsOfSession()) {
    const absl::Status ran = RunGraph(inputs.storage().tensors, &fetched);
    if (!ran.ok()) return {FromTensorFlow(ran).code(), KernelMessage(ran.message())};
  }
  plan_.Assemble(inputs, fetched, result);
  return {};
}

absl::Status Callable::RunGraph(const std::vector<tensorflow::Tensor>& fed,
                                std::vector<tensorflow::Tensor>* fetched) const {
  const bool is_direct =
      direct_ != nullptr && direct_->IsReady() && fed.size() == plan_.feeds().size();
  if (!is_direct) return session_->RunCallable(handle_, fed, fetched, nullptr);
  fetched->resize(plan_.fetches().size());
  return direct_->Run(fed, fetched);
}

}  // namespace millpond::tf
