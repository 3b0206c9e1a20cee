#include "native/tf/write_watch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

bool HaveEqualElements(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == tensorflow::DT_STRING) {
    const auto one = a.flat<tensorflow::tstring>();
    const auto other = b.flat<tensorflow::tstring>();
    return std::equal(one.data(), one.data() + one.size(), other.data());
  }
  if (tensorflow::DataTypeSize(a.dtype()) == 0) return false;
  const size_t bytes = a.TotalBytes();
  return bytes == 0 || a.data() == b.data() || std::memcmp(a.data(), b.data(), bytes) == 0;
}

// Returns true if the variable already has the value that the kernel assigns, bit by bit.
bool AssignsTheSame(tensorflow::OpKernelContext* context) {
  if (context->num_inputs() < 2 || context->input_dtype(0) != tensorflow::DT_RESOURCE) return false;
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  const auto found =
      tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable);
  if (!found.ok()) return false;
  const tensorflow::tf_shared_lock lock(*variable->mu());
  return variable->is_initialized && variable->tensor()->IsInitialized() &&
         HaveEqualElements(*variable->tensor(), context->input(1));
}

}  // namespace

bool WriteWatch::IsDone(const tensorflow::OpKernel& kernel, bool may_write,
                        tensorflow::OpKernelContext* context) {
  const bool assigns = kernel.type_string() == kAssignOp;
  // A run that may write is watched only if its model writes by assignments alone, or if the state
  // is kept.
  const bool is_asked = !may_write || keeper_ != nullptr;
  if (!assigns && (!is_asked || !MayWrite(kernel.def()))) return false;
  if (assigns && AssignsTheSame(context)) return true;
  has_changed_.store(true, std::memory_order_relaxed);
  const absl::Status kept = keeper_ == nullptr ? absl::OkStatus() : keeper_->Keep(kernel, context);
  if (may_write) {
    if (!kept.ok()) keeper_->Lose(kept);
    return false;
  }
  if (keeper_ != nullptr && kept.ok()) return false;
  const std::string why = kept.ok() ? "" : absl::StrCat(", because ", kept.message());
  context->SetStatus(absl::PermissionDeniedError(
      absl::StrCat("a request may change a variable, by node '", kernel.name(), "' (",
                   kernel.type_string(), "): it is not repeated", why)));
  return false;
}

size_t WriteWatch::PutBackState() {
  const std::unique_ptr<StateKeeper> keeper = std::move(keeper_);
  return keeper == nullptr ? 0 : keeper->PutBack();
}

}  // namespace millpond::tf
