#include "native/tf/fixed_value.h"

#include <string>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

// A second buffer over the memory of a tensor.
class SharedBuffer final : public tensorflow::TensorBuffer {
 public:
  explicit SharedBuffer(Tensor value) : TensorBuffer(value.data()), value_(std::move(value)) {}

  const Tensor& value() const { return value_; }
  size_t size() const override { return value_.TotalBytes(); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(size()));
  }

 private:
  const Tensor value_;
};

// Returns the value of a variable, and leaves the variable with a buffer of its own.
absl::StatusOr<Tensor> Share(tensorflow::Var* variable) {
  const tensorflow::mutex_lock lock(*variable->mu());
  Tensor* const tensor = variable->tensor();
  if (!tensor->IsInitialized()) return absl::FailedPreconditionError("it has no value");
  if (tensor->NumElements() == 0) return *tensor;
  auto* const buffer = dynamic_cast<SharedBuffer*>(tensorflow::DMAHelper::buffer(tensor));
  if (buffer != nullptr) return buffer->value();
  Tensor value = *tensor;
  *tensor =
      Tensor(value.dtype(), value.shape(),
             tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(new SharedBuffer(value)));
  return value;
}

}  // namespace

absl::StatusOr<Tensor> FixedValue(tensorflow::OpKernelConstruction* context) {
  std::string container;
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr(kFixedContainer, &container));
  TF_RETURN_IF_ERROR(context->GetAttr(kFixedVariable, &name));
  tensorflow::ResourceMgr* const resources = context->resource_manager();
  if (container.empty()) container = resources->default_container();
  tensorflow::Var* found = nullptr;
  TF_RETURN_IF_ERROR(resources->Lookup(container, name, &found));
  const tensorflow::core::RefCountPtr<tensorflow::Var> variable(found);
  return Share(variable.get());
}

}  // namespace millpond::tf
