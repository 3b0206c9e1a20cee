#pragma once

namespace tensorflow {
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// Looks at the kernels of a run (RunScope), each before it is computed. Thread: any that computes
// kernels of the run.
class KernelWatch {
 public:
  KernelWatch() = default;
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;
  virtual ~KernelWatch() = default;

  // Returns true if the kernel need not be computed. Sets a status in `context` to end the run.
  virtual bool IsDone(const tensorflow::OpKernel& kernel, bool may_write,
                      tensorflow::OpKernelContext* context) = 0;
};

}  // namespace millpond::tf
