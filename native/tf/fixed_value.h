#pragma once

#include "absl/status/statusor.h"

namespace tensorflow {
class OpKernelConstruction;
class Tensor;
}  // namespace tensorflow

namespace millpond::tf {

// The attributes of a kernel that has its variable's value from the beginning: the variable's key
// in the resources of its device.
inline constexpr char kFixedContainer[] = "_millpond_container";
inline constexpr char kFixedVariable[] = "_millpond_variable";

// The value of the attribute `_kernel` by which a node has a kernel of ours.
inline constexpr char kMillpondKernel[] = "millpond";

// Returns the value of the variable that the kernel's attributes name. Its memory is not freed
// before the last such value is gone. Returns NOT_FOUND if there is no such variable, and
// FAILED_PRECONDITION if it has no value.
//
// TensorFlow allows no alias of a variable that it gathers from: its own gather copies the whole
// table at its first run if there is one. So the value keeps the variable's buffer, and the
// variable gets a second buffer over the same memory, to which it has the only reference.
absl::StatusOr<tensorflow::Tensor> FixedValue(tensorflow::OpKernelConstruction* context);

}  // namespace millpond::tf
