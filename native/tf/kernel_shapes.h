#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorflow {
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// Checks the shapes of the inputs that `kernel` is about to compute. Returns INVALID_ARGUMENT if
// the op's shape function refuses them.
//
// TensorFlow runs shape functions when a graph is built, and kernels rely on them: a kernel that
// meets another rank fails a CHECK, which ends the process. Resource and variant inputs count as
// unknown. An op without a shape function passes.
//
// Shapes that passed once are not checked again, because a signature with an open rank needs the
// check in every request. `device_id` identifies the kernel's device and is never reused for
// another device. So a kernel at the address of a freed kernel counts as a new kernel. Thread: any.
// Cost: about 2 us for new shapes, 0.5 us for shapes that passed before.
absl::Status CheckKernelShapes(const tensorflow::OpKernel& kernel, uint64_t device_id,
                               tensorflow::OpKernelContext* context);

// Returns the bytes of the outputs that `kernel` is about to make, by its op's shape function; 0 if
// the function does not tell them. Thread: any. Cost: about 2 us.
int64_t InferredOutputBytes(const tensorflow::OpKernel& kernel,
                            tensorflow::OpKernelContext* context);

}  // namespace millpond::tf
