#include "native/tf/split_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/pjrt/tuned_trial.h"
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
  base::Status ran = RunOnChosenSide(outputs, inputs, result);
  if (ran.ok() && sides_ != nullptr) sides_->sample.Offer(inputs);
  return ran;
}

base::Status SplitRunner::RunOnChosenSide(const tensor::OutputSet& outputs,
                                          const tensor::TensorList& inputs,
                                          tensor::TensorList* result) const {
  int64_t wait_ns = 0;
  if (pjrt::TunedTrial::rows() != pjrt::TunedTrial::kNone) {
    return RunParts(outputs, inputs, result, &wait_ns);
  }
  const std::optional<int64_t> rows = RowsOf(inputs);
  const pjrt::SidePlan plan = PlanFor(rows);
  const bool is_on_cpu = plan.side == pjrt::Side::kCpu;
  if (is_on_cpu) device_->CountCpuRun(pjrt::CpuReason::kFaster);
  if (!is_on_cpu && !device_->MayRun(rows)) return whole_->Run(outputs, inputs, result);
  const int64_t began_ns = plan.is_timed ? base::MonotonicNs() : 0;
  base::Status ran = is_on_cpu ? whole_->Run(outputs, inputs, result)
                               : RunParts(outputs, inputs, result, &wait_ns);
  if (ran.ok() && plan.is_timed) {
    sides_->times.Add(*rows, plan.side, base::MonotonicNs() - began_ns - wait_ns);
  }
  const bool is_over = is_on_cpu || ran.ok() || ran.code() == base::Code::kDeadlineExceeded;
  return is_over ? ran : whole_->Run(outputs, inputs, result);
}

// Without known rows, the run is for the device. A probe there must not ask for parameters that are
// away, because other models may have taken their place.
pjrt::SidePlan SplitRunner::PlanFor(std::optional<int64_t> rows) const {
  if (sides_ == nullptr || !rows) return {};
  const pjrt::SidePlan plan = sides_->times.Plan(*rows);
  const bool is_idle_probe =
      plan.is_probe && plan.side == pjrt::Side::kAccelerator && !device_->IsThere();
  return is_idle_probe ? pjrt::SidePlan{pjrt::Side::kCpu} : plan;
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
  if (status.code() != base::Code::kDeadlineExceeded)
    device_->CountCpuRun(pjrt::CpuReason::kRefused);
  return status;
}

base::Status SplitRunner::RunParts(const tensor::OutputSet& outputs,
                                   const tensor::TensorList& inputs, tensor::TensorList* result,
                                   int64_t* wait_ns) const {
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
  MILLPOND_RETURN_IF_ERROR(device_->RunInTurn(all, crossing, &computed, wait_ns));
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
