#pragma once

#include "native/tf/kernel_watch.h"

namespace millpond::tf {

// The watch for the run of an init op: ends it before rows of another shape than a variable's are
// scattered into the variable. The kernels do not compare them, and would read memory behind them.
class ScatterWatch final : public KernelWatch {
 public:
  // `next` looks at each kernel after this; it may be null.
  explicit ScatterWatch(KernelWatch* next) : next_(next) {}

  bool IsDone(const tensorflow::OpKernel& kernel, bool may_write,
              tensorflow::OpKernelContext* context) override;

 private:
  KernelWatch* const next_;
};

}  // namespace millpond::tf
