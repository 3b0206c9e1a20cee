#include "native/tf/kernel_shapes.h"

#include <memory>
#include <utility>
#include <vector>

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

// Shapes of handles at run time are not those that shape functions expect.
bool HasOwnShape(const Tensor& tensor) {
  return tensor.dtype() != tensorflow::DT_RESOURCE && tensor.dtype() != tensorflow::DT_VARIANT;
}

struct KernelInputs {
  std::vector<PartialTensorShape> shapes;
  std::vector<const Tensor*> tensors;
};

KernelInputs InputsOf(tensorflow::OpKernelContext* context) {
  KernelInputs inputs;
  for (int i = 0; i < context->num_inputs(); ++i) {
    // A reference is read under its own lock, and a dead input of a Merge is not there.
    const bool is_plain = !context->input_is_ref(i) && context->has_input(i);
    const Tensor* const tensor = is_plain ? &context->input(i) : nullptr;
    const bool is_known = tensor != nullptr && HasOwnShape(*tensor);
    inputs.shapes.push_back(is_known ? PartialTensorShape(tensor->shape().dim_sizes())
                                     : PartialTensorShape());
    inputs.tensors.push_back(is_known ? tensor : nullptr);
  }
  return inputs;
}

}  // namespace

absl::Status CheckKernelShapes(const tensorflow::OpKernel& kernel,
                               tensorflow::OpKernelContext* context) {
  const tensorflow::OpRegistrationData* op = nullptr;
  const bool is_known = tensorflow::OpRegistry::Global()->LookUp(kernel.type_string(), &op).ok();
  if (!is_known || op->shape_inference_fn == nullptr) return absl::OkStatus();
  const KernelInputs inputs = InputsOf(context);
  tensorflow::shape_inference::InferenceContext inference(
      TF_GRAPH_DEF_VERSION, tensorflow::AttrSlice(kernel.def()), op->op_def, inputs.shapes,
      inputs.tensors, std::vector<PartialTensorShape>(), std::vector<HandleShapes>());
  // An op whose number of inputs is not its definition's: nothing to be learned.
  if (!inference.construction_status().ok()) return absl::OkStatus();
  const absl::Status inferred = inference.Run(op->shape_inference_fn);
  if (inferred.ok()) return inferred;
  return absl::InvalidArgumentError(
      absl::StrCat(inferred.message(), " [node ", kernel.name(), "]"));
}

}  // namespace millpond::tf
