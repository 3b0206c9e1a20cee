#pragma once

#include <optional>

#include "tsl/profiler/lib/traceme.h"

namespace tensorflow {
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
