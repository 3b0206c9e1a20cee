#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/framework/types.h"
#include "tsl/profiler/lib/traceme.h"

namespace tensorflow {
class Graph;
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// The executor type of sessions (ConfigProto.experimental.executor_type). Its executors compute the
// kernels of a graph one after the other on the calling thread, in an order that is fixed when the
// executor is made. TensorFlow's usual executor finds the order anew in each run, with atomic
// counts for each node, so that several threads may share a run. A run that stays on its thread
// needs none of that (docs/design.md, "Run inline").
//
// Some graphs cannot be computed in one fixed order: graphs with the control flow of TensorFlow 1
// (to which TensorFlow lowers loops and branches), with references, with calls of functions, and
// with kernels that wait for other kernels. Such a graph gets TensorFlow's usual executor. Each
// callable has its own graph, so one signature may have the one and another signature the other.
inline constexpr char kRunExecutor[] = "MILLPOND_RUN";

// Registers the type in TensorFlow, for the whole process. Call it once.
void RegisterRunExecutor();

// Each node with an unused output: for each of its outputs, true if another node uses it.
using TakenOutputs = absl::flat_hash_map<std::string, std::vector<bool>>;

// The parts that each run of a session gives to its executor.
struct SessionParts {
  tensorflow::SessionState* state = nullptr;
  const tensorflow::ConfigProto* config = nullptr;
  std::string handle;
};

// TensorFlow's single-threaded executor, with the checks that its usual executor does.
// Thread: any number of threads at the same time.
class InOrderExecutor final : public tensorflow::Executor {
 public:
  // `executor` is TensorFlow's for `graph`.
  InOrderExecutor(std::unique_ptr<tensorflow::Executor> executor, const tensorflow::Graph& graph);

  absl::Status Run(const Args& args) override;

  // The parts of the session that the first run was given; null before.
  const SessionParts* session_parts() const {
    return session_parts_.load(std::memory_order_acquire);
  }
  // True if one of the fed tensors is a resource, whose handle a session replaces by its tensor.
  bool IsFedWithResource() const;

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { done(Run(args)); }
  absl::Status CheckFed(tensorflow::CallFrameInterface* frame) const;
  void KeepSessionParts(const Args& args);

  const std::unique_ptr<tensorflow::Executor> executor_;
  const std::vector<tensorflow::DataType> argument_types_;
  const TakenOutputs taken_outputs_;
  std::once_flag is_kept_;
  SessionParts kept_parts_;
  std::atomic<const SessionParts*> session_parts_{nullptr};
};

// Notes the executors of the type that are made on this thread while the scope lives.
class MadeExecutors {
 public:
  MadeExecutors();
  ~MadeExecutors();
  MadeExecutors(const MadeExecutors&) = delete;
  MadeExecutors& operator=(const MadeExecutors&) = delete;

  void Add(InOrderExecutor* executor);
  // Returns the executor that was made, if it is the only one and in order; otherwise null.
  InOrderExecutor* OnlyInOrder() const { return count_ == 1 ? last_ : nullptr; }

 private:
  int count_ = 0;
  InOrderExecutor* last_ = nullptr;  // null: the usual executor
  MadeExecutors* const outer_;
};

struct InOrderRun;

// Does for a kernel of a run in a fixed order what TensorFlow's usual executor does, and its
// single-threaded one does not: a span in a profile, a check that each output is set, and the
// kernel's node in the error of the run. Does nothing in other runs. ServableDevice computes every
// kernel in such a scope.
class KernelInOrder {
 public:
  KernelInOrder(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);
  ~KernelInOrder();
  KernelInOrder(const KernelInOrder&) = delete;
  KernelInOrder& operator=(const KernelInOrder&) = delete;

 private:
  InOrderRun* const run_;  // null: not in a fixed order
  const tensorflow::OpKernel& kernel_;
  tensorflow::OpKernelContext* const context_;
  std::optional<tsl::profiler::TraceMe> span_;
};

}  // namespace millpond::tf
