#include "native/tf/callable.h"

#include <functional>
#include <string>
#include <vector>

#include "native/base/thread_priority.h"

#include "native/tf/kernel_message.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "xla/tsl/platform/threadpool_interface.h"
#include "xla/tsl/platform/threadpool_options.h"

namespace millpond::tf {

using base::Status;

namespace {

// A pool without threads of its own: a scheduled task runs at once on the calling thread.
class CallingThreadPool final : public tsl::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> task) override { task(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return 0; }
};

}  // namespace

Callable::Callable(tensorflow::Session* session, const tensor::Signature& signature,
                   const tensor::OutputSet& outputs)
    : session_(session), plan_(signature, outputs) {
  if (plan_.IsHandedThrough()) return;
  tensorflow::CallableOptions options;
  options.mutable_run_options()->set_inter_op_thread_pool(-1);
  for (const std::string& feed : plan_.feeds()) options.add_feed(feed);
  for (const std::string& fetch : plan_.fetches()) options.add_fetch(fetch);
  made_ = FromTensorFlow(session->MakeCallable(options, &handle_),
                         "signature '" + signature.name + "'");
}

Callable::~Callable() {
  if (IsOfSession()) session_->ReleaseCallable(handle_).IgnoreError();
}

// Keeps a warm-up on its background thread. On TensorFlow's pool its kernels would have the
// priority of requests, and requests would queue behind them.
absl::Status Callable::RunHandle(const std::vector<tensorflow::Tensor>& inputs,
                                 std::vector<tensorflow::Tensor>* fetched) const {
  if (!base::IsBackgroundThread()) {
    return session_->RunCallable(handle_, inputs, fetched, nullptr);
  }
  CallingThreadPool pool;
  tsl::thread::ThreadPoolOptions options;
  options.intra_op_threadpool = &pool;
  return session_->RunCallable(handle_, inputs, fetched, nullptr, options);
}

Status Callable::Run(const tensor::TensorList& inputs, tensor::TensorList* result) const {
  if (!made_.ok()) return made_;
  std::vector<tensorflow::Tensor> fetched;
  if (IsOfSession()) {
    const absl::Status ran = RunHandle(inputs.storage().tensors, &fetched);
    if (!ran.ok()) return {FromTensorFlow(ran).code(), KernelMessage(ran.message())};
  }
  plan_.Assemble(inputs, fetched, result);
  return {};
}

}  // namespace millpond::tf
