#include "native/tf/direct_run.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "native/tf/run_executor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/rendezvous_mgr.h"
#include "tensorflow/core/common_runtime/scoped_allocator_mgr.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/session_state.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tsl/profiler/lib/connected_traceme.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

// The tensors of a run.
class RunFrame final : public tensorflow::CallFrameInterface {
 public:
  RunFrame(const std::vector<Tensor>& fed, std::vector<Tensor>* fetched)
      : fed_(fed), fetched_(*fetched) {}

  size_t num_args() const override { return fed_.size(); }
  size_t num_retvals() const override { return fetched_.size(); }

  absl::Status GetArg(int index, const Tensor** value) override {
    if (index < 0 || static_cast<size_t>(index) >= fed_.size()) return OutOfBounds("feed", index);
    *value = &fed_[index];
    return absl::OkStatus();
  }
  absl::Status SetRetval(int index, const Tensor& value) override {
    if (index < 0 || static_cast<size_t>(index) >= fetched_.size()) {
      return OutOfBounds("fetch", index);
    }
    fetched_[index] = value;
    return absl::OkStatus();
  }

 private:
  static absl::Status OutOfBounds(const char* what, int index) {
    return absl::InternalError("the callable has no " + std::string(what) + " " +
                               std::to_string(index));
  }

  const std::vector<Tensor>& fed_;
  std::vector<Tensor>& fetched_;
};

// The place where kernels of a run send one another tensors. The first kernel that sends makes it,
// which is rare, because making it takes a lock of the session's devices.
class RunRendezvous final : public tensorflow::RendezvousInterface {
 public:
  explicit RunRendezvous(const tensorflow::DeviceMgr& devices) : devices_(devices) {}

  absl::Status Send(const ParsedKey& key, const Args& args, const Tensor& value,
                    const bool is_dead) override {
    return Made()->Send(key, args, value, is_dead);
  }
  void RecvAsync(const ParsedKey& key, const Args& args, DoneCallback done) override {
    Made()->RecvAsync(key, args, std::move(done));
  }
  void StartAbort(const absl::Status& status) override { Made()->StartAbort(status); }

 private:
  tensorflow::RendezvousInterface* Made() {
    std::call_once(is_made_, [&] { made_.emplace(&devices_); });
    return &*made_;
  }

  const tensorflow::DeviceMgr& devices_;
  std::once_flag is_made_;
  std::optional<tensorflow::PrivateIntraProcessRendezvous> made_;
};

// Returns a number that no other run of the process has: resources of a run are named after it. The
// session counts its runs from 1, and does not come so far. A thread takes many numbers at a time,
// because all threads would wait for the counter's cache line.
int64_t NextStepId() {
  constexpr int64_t kFirst = int64_t{1} << 62U;
  constexpr int64_t kTakenAtOnce = 4'096;
  static std::atomic<int64_t> next_block{kFirst};
  thread_local int64_t next = 0;
  if (next % kTakenAtOnce == 0) {
    next = next_block.fetch_add(kTakenAtOnce, std::memory_order_relaxed);
  }
  return next++;
}

// Removes what kernels left in the devices' resources for the run.
void CleanUp(const tensorflow::DeviceMgr& devices, int64_t step_id, const std::string& container) {
  for (tensorflow::Device* const device : devices.ListDevices()) {
    device->resource_manager()->Cleanup(container).IgnoreError();
    tensorflow::ScopedAllocatorMgr* const allocators = device->GetScopedAllocatorMgr();
    if (allocators != nullptr) allocators->Cleanup(step_id);
  }
}

}  // namespace

DirectRun::DirectRun(InOrderExecutor* executor, tensorflow::Session* session,
                     std::vector<std::string> fetches)
    : executor_(executor), fetches_(std::move(fetches)) {
  session->LocalDeviceManager(&devices_).IgnoreError();
}

bool DirectRun::IsReady() const {
  return devices_ != nullptr && executor_->session_parts() != nullptr;
}

absl::Status DirectRun::Run(const std::vector<Tensor>& fed, std::vector<Tensor>* fetched) const {
  const SessionParts& session = *executor_->session_parts();
  const int64_t step_id = NextStepId();
  const tsl::profiler::TraceMeProducer span(
      [&] {
        return tsl::profiler::TraceMeEncode("SessionRun", {{"id", step_id}, {"_r", 1}});
      },
      tsl::profiler::ContextType::kTfExecutor, step_id, tsl::profiler::TraceMeLevel::kInfo);
  RunFrame frame(fed, fetched);
  tensorflow::TensorStore kept;
  tensorflow::ScopedStepContainer container(
      step_id, [&](const std::string& name) { CleanUp(*devices_, step_id, name); });
  tensorflow::CancellationManager cancellation;
  RunRendezvous rendezvous(*devices_);
  tensorflow::Executor::Args args;
  args.step_id = step_id;
  args.call_frame = &frame;
  args.rendezvous = &rendezvous;
  args.cancellation_manager = &cancellation;
  args.session_state = session.state;
  args.session_config = session.config;
  args.session_handle = session.handle;
  args.tensor_store = &kept;
  args.step_container = &container;
  args.runner = [](const tensorflow::Executor::Args::Closure& closure) { closure(); };
  args.run_all_kernels_inline = true;
  absl::Status ran = executor_->Run(args);
  if (cancellation.IsCancelled()) ran.Update(absl::CancelledError("Run call was cancelled"));
  if (ran.ok() && !kept.empty()) ran = kept.SaveTensors(fetches_, session.state);
  return ran;
}

}  // namespace millpond::tf
