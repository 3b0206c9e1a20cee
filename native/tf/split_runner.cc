#include "native/tf/split_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

// Appends a tensor of `first` or `second` to `to`, as `origin` says.
void Append(const SignatureSplit::Origin& origin, const tensor::TensorList& first,
            const tensor::TensorList& second, tensor::TensorList* to) {
  const tensor::TensorList& from = origin.is_first ? first : second;
  to->storage().tensors.push_back(from.storage().tensors[origin.index]);
}

bool AreAllTrue(const tensorflow::Tensor& flags) {
  const auto flat = flags.flat<bool>();
  return std::all_of(flat.data(), flat.data() + flat.size(), [](bool flag) { return flag; });
}

}  // namespace

base::Status SplitRunner::Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                              tensor::TensorList* result) const {
  if (!device_->MayRun(RowsOf(inputs))) return whole_->Run(outputs, inputs, result);
  const base::Status ran = RunParts(outputs, inputs, result);
  const bool is_over = ran.ok() || ran.code() == base::Code::kDeadlineExceeded;
  return is_over ? ran : whole_->Run(outputs, inputs, result);
}

// Returns the rows of a request as far as its inputs show them: the device part takes the rows of
// those that cross. If none does, a single input has them.
std::optional<int64_t> SplitRunner::RowsOf(const tensor::TensorList& inputs) const {
  const std::vector<tensorflow::Tensor>& tensors = inputs.storage().tensors;
  const auto crossing =
      std::find_if(split_.device_inputs.begin(), split_.device_inputs.end(),
                   [](const SignatureSplit::Origin& origin) { return origin.is_first; });
  if (crossing == split_.device_inputs.end() && tensors.size() != 1) return {};
  const tensorflow::Tensor& of_rows =
      tensors[crossing == split_.device_inputs.end() ? 0 : crossing->index];
  return of_rows.dims() == 0 ? std::nullopt : std::optional(of_rows.dim_size(0));
}

// Counts a request that a part refuses, unless its time is over.
base::Status SplitRunner::Refuse(base::Status status) const {
  if (status.code() != base::Code::kDeadlineExceeded) device_->CountRefused();
  return status;
}

base::Status SplitRunner::RunParts(const tensor::OutputSet& outputs,
                                   const tensor::TensorList& inputs,
                                   tensor::TensorList* result) const {
  tensor::TensorList made;
  if (host_ != nullptr) {
    const auto all = tensor::OutputSet::All(split_.host.outputs.size());
    base::Status ran = host_->Run(all, inputs, &made);
    if (!ran.ok()) return Refuse(std::move(ran));
  }
  tensor::TensorList crossing;
  for (const SignatureSplit::Origin& origin : split_.device_inputs) {
    Append(origin, inputs, made, &crossing);
  }
  tensor::TensorList computed;
  const auto all = tensor::OutputSet::All(split_.device.outputs.size());
  MILLPOND_RETURN_IF_ERROR(device_->Run(all, crossing, &computed));
  if (split_.has_index_check && !AreAllTrue(computed.storage().tensors.back())) {
    return Refuse(base::InvalidArgument("an index is beyond its table"));  // the CPU says which
  }
  result->storage().tensors.clear();
  for (size_t i = 0; i < split_.outputs.size(); ++i) {
    if (outputs.Contains(i)) Append(split_.outputs[i], computed, made, result);
  }
  return {};
}

}  // namespace millpond::tf
