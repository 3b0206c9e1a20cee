#pragma once

#include <cstdint>

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
// An op without a shape function passes.
//
// Shapes that passed once are not asked about again: a signature whose rank is open needs the check
// in every request. `device_id` names the kernel's device and is never used for another one, so
// that a kernel at the address of a freed one is a new kernel. Thread: any.
// Cost: about 2 us for new shapes, 0.5 us for those that passed before.
absl::Status CheckKernelShapes(const tensorflow::OpKernel& kernel, uint64_t device_id,
                               tensorflow::OpKernelContext* context);

}  // namespace millpond::tf
