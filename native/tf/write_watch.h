#pragma once

#include <atomic>

#include "absl/status/status.h"

namespace tensorflow {
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// Watches what the runs of one model write to its variables, if its graph has nodes that may.
//
// A model may assign in each call what it has read before: exports of Keras on JAX do, with the
// averages of a batch normalization. Such a call changes no answer. The graph does not show that,
// because the value goes through a compiled program. So each assignment is compared with the
// variable just before it is made.
//
// A run that may not write (RunContext::may_write) ends before a kernel that would change a
// variable, and so changes nothing. Thread: any.
class WriteWatch {
 public:
  // Looks at a kernel that is about to be computed. Returns true if it need not be computed,
  // because the variable has the value already. Sets PERMISSION_DENIED in `context` if the run
  // may not write, and the kernel may.
  bool IsDone(const tensorflow::OpKernel& kernel, bool may_write,
              tensorflow::OpKernelContext* context);

  // True once a run has changed a variable, or would have. Never false again.
  bool has_changed() const { return has_changed_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> has_changed_{false};
};

}  // namespace millpond::tf
