#pragma once

#include "absl/status/status.h"

namespace tensorflow {
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// Returns INVALID_ARGUMENT if the op's shape function refuses the shapes of the inputs that
// `kernel` is about to compute.
//
// TensorFlow runs shape functions when a graph is built, and kernels rely on them: one that finds
// another rank fails a CHECK, which ends the process. Resource and variant inputs count as unknown.
// An op without a shape function passes. Cost: microseconds.
absl::Status CheckKernelShapes(const tensorflow::OpKernel& kernel,
                               tensorflow::OpKernelContext* context);

}  // namespace millpond::tf
