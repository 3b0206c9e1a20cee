#include "native/tf/kernel_shapes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/public/version.h"

namespace millpond::tf {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using HandleShapes =
    std::unique_ptr<std::vector<std::pair<PartialTensorShape, tensorflow::DataType>>>;

// Returns true if shape functions expect the shape that the tensor has at run time. For handles
// they do not.
bool HasOwnShape(const Tensor& tensor) {
  return tensor.dtype() != tensorflow::DT_RESOURCE && tensor.dtype() != tensorflow::DT_VARIANT;
}

// Returns the input if it has a shape that its op's shape function can read, or null if not.
const Tensor* ShapedInput(tensorflow::OpKernelContext* context, int index) {
  // A reference is read under its own lock, and a Merge has dead inputs without a tensor.
  if (context->input_is_ref(index) || !context->has_input(index)) return nullptr;
  const Tensor& tensor = context->input(index);
  return HasOwnShape(tensor) ? &tensor : nullptr;
}

// The keys of kernels and shapes that passed. If a key replaces another key in its slot, the shapes
// of the other key are checked once more. 128 KiB.
class PassedShapes {
 public:
  bool Has(uint64_t key) const { return SlotOf(key).load(std::memory_order_relaxed) == key; }
  void Add(uint64_t key) { SlotOf(key).store(key, std::memory_order_relaxed); }

 private:
  static constexpr size_t kSlotCount = size_t{1} << 14U;

  const std::atomic<uint64_t>& SlotOf(uint64_t key) const { return slots_[key % kSlotCount]; }
  std::atomic<uint64_t>& SlotOf(uint64_t key) { return slots_[key % kSlotCount]; }

  std::array<std::atomic<uint64_t>, kSlotCount> slots_{};
};

PassedShapes passed_shapes;

// Returns a key that is never 0, because 0 marks an empty slot.
uint64_t KeyOf(const tensorflow::OpKernel& kernel, uint64_t device_id,
               tensorflow::OpKernelContext* context) {
  uint64_t key = absl::HashOf(&kernel, kernel.name_view(), device_id);
  for (int i = 0; i < context->num_inputs(); ++i) {
    const Tensor* const tensor = ShapedInput(context, i);
    if (tensor == nullptr) {
      key = absl::HashOf(key, -1);
      continue;
    }
    key = absl::HashOf(key, tensor->dims());
    for (int axis = 0; axis < tensor->dims(); ++axis) {
      key = absl::HashOf(key, tensor->dim_size(axis));
    }
  }
  return key == 0 ? 1 : key;
}

struct KernelInputs {
  std::vector<PartialTensorShape> shapes;
  std::vector<const Tensor*> tensors;
};

KernelInputs InputsOf(tensorflow::OpKernelContext* context) {
  KernelInputs inputs;
  for (int i = 0; i < context->num_inputs(); ++i) {
    const Tensor* const tensor = ShapedInput(context, i);
    inputs.shapes.push_back(tensor != nullptr ? PartialTensorShape(tensor->shape().dim_sizes())
                                              : PartialTensorShape());
    inputs.tensors.push_back(tensor);
  }
  return inputs;
}

using InferenceContext = tensorflow::shape_inference::InferenceContext;

// Runs the op's shape function, and then `read` if the function takes the inputs. Returns OK if
// there is no such function, or if the number of inputs differs from the op's definition.
absl::Status AskShapeFunction(const tensorflow::OpKernel& kernel,
                              tensorflow::OpKernelContext* context,
                              absl::FunctionRef<void(InferenceContext*)> read) {
  const tensorflow::OpRegistrationData* op = nullptr;
  const bool is_known = tensorflow::OpRegistry::Global()->LookUp(kernel.type_string(), &op).ok();
  if (!is_known || op->shape_inference_fn == nullptr) return absl::OkStatus();
  const KernelInputs inputs = InputsOf(context);
  InferenceContext inference(TF_GRAPH_DEF_VERSION, tensorflow::AttrSlice(kernel.def()), op->op_def,
                             inputs.shapes, inputs.tensors, std::vector<PartialTensorShape>(),
                             std::vector<HandleShapes>());
  if (!inference.construction_status().ok()) return absl::OkStatus();
  const absl::Status inferred = inference.Run(op->shape_inference_fn);
  if (!inferred.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(inferred.message(), " [node ", kernel.name(), "]"));
  }
  read(&inference);
  return inferred;
}

// Returns the bytes of an output; 0 if its shape is not known.
int64_t OutputBytes(InferenceContext* inference, int output, int64_t element_bytes) {
  const auto shape = inference->output(output);
  if (!inference->FullyDefined(shape)) return 0;
  int64_t bytes = element_bytes;
  for (int axis = 0; axis < inference->Rank(shape); ++axis) {
    const int64_t size = inference->Value(inference->Dim(shape, axis));
    if (__builtin_mul_overflow(bytes, size, &bytes)) return INT64_MAX / 2;
  }
  return bytes;
}

}  // namespace

absl::Status CheckKernelShapes(const tensorflow::OpKernel& kernel, uint64_t device_id,
                               tensorflow::OpKernelContext* context) {
  const uint64_t key = KeyOf(kernel, device_id, context);
  if (passed_shapes.Has(key)) return absl::OkStatus();
  const absl::Status checked = AskShapeFunction(kernel, context, [](InferenceContext*) {});
  if (checked.ok()) passed_shapes.Add(key);
  return checked;
}

int64_t InferredOutputBytes(const tensorflow::OpKernel& kernel,
                            tensorflow::OpKernelContext* context) {
  int64_t bytes = 0;
  AskShapeFunction(kernel, context, [&](InferenceContext* inference) {
    for (int i = 0; i < std::min(inference->num_outputs(), kernel.num_outputs()); ++i) {
      const int64_t element_bytes = tensorflow::DataTypeSize(kernel.output_type(i));
      const int64_t output_bytes = OutputBytes(inference, i, element_bytes);
      bytes = std::min(bytes + output_bytes, INT64_MAX / 2);
    }
  }).IgnoreError();
  return bytes;
}

}  // namespace millpond::tf
