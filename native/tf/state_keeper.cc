#include "native/tf/state_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

// Returns true if the kernel calls a function by its name. If it uses other resources than
// variables, kernels of the function do that, which are looked at too.
bool CallsFunction(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context) {
  const auto* const library = context->function_library();
  return library != nullptr &&
         library->GetFunctionLibraryDefinition()->Contains(kernel.type_string());
}

// Sets `copy` to a copy that shares no memory with `value`. Returns false if no memory is left.
bool Copy(const Tensor& value, Tensor* copy) {
  *copy = Tensor(tensorflow::cpu_allocator(), value.dtype(), value.shape());
  if (!copy->IsInitialized()) return false;
  tensorflow::tensor::DeepCopy(value, copy);
  return true;
}

}  // namespace

absl::Status StateKeeper::Keep(const tensorflow::OpKernel& kernel,
                               tensorflow::OpKernelContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!lost_.ok()) return lost_;
  if (WritesInPlace(kernel.def()) || kernel.type_string() == "DestroyResourceOp") {
    return absl::UnimplementedError("what it changes cannot be put back");
  }
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (tensorflow::IsRefType(context->input_dtype(i))) {
      return absl::UnimplementedError("a variable of TensorFlow 1 cannot be put back");
    }
    if (context->input_dtype(i) != tensorflow::DT_RESOURCE || !context->has_input(i)) continue;
    const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, i);
    RefCountPtr<Var> variable;
    const absl::Status found = tensorflow::LookupResource(context, handle, &variable);
    if (!found.ok() && CallsFunction(kernel, context)) continue;
    if (!found.ok() && !absl::IsNotFound(found)) {
      return absl::UnimplementedError(
          absl::StrCat("'", handle.name(), "' is not a variable, and cannot be put back"));
    }
    if (variable != nullptr && written_ && written_->count(handle.name()) == 0) continue;
    const absl::Status kept = KeepValue(handle, std::move(variable));
    if (!kept.ok()) return kept;
  }
  return absl::OkStatus();
}

absl::Status StateKeeper::KeepValue(const tensorflow::ResourceHandle& handle,
                                    RefCountPtr<Var> variable) {
  if (variable != nullptr && kept_.count(variable.get()) > 0) return absl::OkStatus();
  const std::string name = absl::StrCat("variable '", handle.name(), "'");
  if (variable == nullptr) {
    return absl::UnimplementedError(absl::StrCat(name, " has no value that could be put back"));
  }
  const tensorflow::mutex_lock lock(*variable->mu());
  const Tensor value = *variable->tensor();
  if (!variable->is_initialized || !value.IsInitialized()) {
    return absl::UnimplementedError(absl::StrCat(name, " has no value that could be put back"));
  }
  if (!tensorflow::DataTypeCanUseMemcpy(value.dtype()) && value.dtype() != tensorflow::DT_STRING) {
    return absl::UnimplementedError(
        absl::StrCat(name, " of ", DataTypeString(value.dtype()), " cannot be put back"));
  }
  const size_t left_bytes = bytes_max_ - bytes_;
  Tensor copy;
  if (value.TotalBytes() > left_bytes || !Copy(value, &copy)) {
    return absl::ResourceExhaustedError(absl::StrCat(name, " has ", value.TotalBytes(),
                                                     " bytes, and memory for ", left_bytes,
                                                     " is left to keep its value"));
  }
  bytes_ += value.TotalBytes();
  *variable->tensor() = std::move(copy);
  const bool copies_on_read = variable->copy_on_read_mode.load();
  const Var* const key = variable.get();
  kept_.emplace(key, Kept{std::move(variable), value, copies_on_read});
  return absl::OkStatus();
}

void StateKeeper::Lose(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lost_ = why;
  kept_.clear();
}

size_t StateKeeper::PutBack() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, kept] : kept_) {
    const tensorflow::mutex_lock variable_lock(*kept.variable->mu());
    *kept.variable->tensor() = std::move(kept.value);
    kept.variable->copy_on_read_mode.store(kept.copies_on_read);
    kept.variable->is_initialized = true;
  }
  const size_t count = kept_.size();
  kept_.clear();
  bytes_ = 0;
  return count;
}

size_t StateKeeper::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace millpond::tf
