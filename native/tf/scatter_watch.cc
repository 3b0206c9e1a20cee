#include "native/tf/scatter_watch.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace millpond::tf {
namespace {

// Returns INVALID_ARGUMENT if a kernel is about to write rows of another shape than those of the
// variable.
absl::Status CheckScatteredRows(const tensorflow::OpKernel& kernel,
                                tensorflow::OpKernelContext* context) {
  const auto type = kernel.type_string_view();
  // ResourceScatterNd… compares the shapes itself.
  if (!absl::StartsWith(type, "ResourceScatter") || absl::StartsWith(type, "ResourceScatterNd") ||
      context->num_inputs() != 3) {
    return absl::OkStatus();
  }
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, 0);
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  // The kernel itself says that there is no such variable, or no value.
  if (!tensorflow::LookupResource(context, handle, &variable).ok()) return absl::OkStatus();
  tensorflow::TensorShape expected = context->input(1).shape();
  {
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const tensorflow::TensorShape& table = variable->tensor()->shape();
    for (int axis = 1; axis < table.dims(); ++axis) expected.AddDim(table.dim_size(axis));
  }
  const tensorflow::TensorShape& rows = context->input(2).shape();
  if (rows.dims() == 0 || rows == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the rows for the variable ", handle.name(), " have the shape ",
                   rows.DebugString(), ", and not ", expected.DebugString(),
                   ": export the version again [node ", kernel.name(), "]"));
}

}  // namespace

bool ScatterWatch::IsDone(const tensorflow::OpKernel& kernel, bool may_write,
                          tensorflow::OpKernelContext* context) {
  const absl::Status checked = CheckScatteredRows(kernel, context);
  if (!checked.ok()) {
    context->SetStatus(checked);
    return false;
  }
  return next_ != nullptr && next_->IsDone(kernel, may_write, context);
}

}  // namespace millpond::tf
