#include "native/inference/signature_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "native/base/clock.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

constexpr std::string_view kMethodNames[] = {
    "tensorflow/serving/predict", "tensorflow/serving/classify", "tensorflow/serving/regress"};

// Returns `signature` if requests for it can be answered. Accepts the method names of predict,
// classify and regress for all requests, as TensorFlow Serving's Predict does.
base::StatusOr<const tensor::Signature*> CheckedForServing(const tensor::Signature& signature) {
  if (!signature.obstacle.empty()) {
    return base::Status(base::Code::kUnimplemented, signature.obstacle);
  }
  const bool is_known = std::find(std::begin(kMethodNames), std::end(kMethodNames),
                                  signature.method_name) != std::end(kMethodNames);
  if (is_known || !signature.has_checked_method_name) return &signature;
  return base::InvalidArgument("signature '" + signature.name +
                               "': Expected method_name to be one of predict's, classify's and "
                               "regress's. Was: " +
                               signature.method_name);
}

using base::Status;

// The number of names that an error message lists before it only counts the others.
constexpr size_t kMaxListedNames = 20;

// Returns why the defaults of the `missing` inputs cannot be used, if the model has any.
std::string DefaultFaults(const tensor::Signature& signature,
                          const std::vector<std::string_view>& missing) {
  std::string faults;
  for (const std::string_view name : missing) {
    const int index = tensor::FindTensorSpec(signature.inputs, name);
    if (index < 0 || signature.inputs[index].default_fault.empty()) continue;
    faults += " The default of '" + std::string(name) +
              "' cannot be used: " + signature.inputs[index].default_fault + ".";
  }
  return faults;
}

Status BadFilter(const std::string& name, const char* what, const tensor::Signature& signature) {
  std::vector<std::string_view> outputs;
  for (const auto& spec : signature.outputs) outputs.push_back(spec.name);
  return base::InvalidArgument("output_filter '" + name + "' " + what + " signature '" +
                               signature.name + "', which has " + ListNames(outputs));
}

const tensor::CompositeSpec* FindComposite(const tensor::Signature& signature,
                                           std::string_view name) {
  const auto& all = signature.composite_outputs;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& spec) { return spec.name == name; });
  return found == all.end() ? nullptr : &*found;
}

// Returns true for the codes with which kernels refuse shapes; oneDNN's kernels use ABORTED. Other
// codes have other causes: a deadline, a missing table, memory.
bool MayComeFromShapes(base::Code code) {
  switch (code) {
    case base::Code::kInvalidArgument:
    case base::Code::kOutOfRange:
    case base::Code::kUnimplemented:
    case base::Code::kInternal:
    case base::Code::kUnknown:
    case base::Code::kAborted:
      return true;
    default:
      return false;
  }
}

// Returns `failed` as an error of the request if an input's shape does not fit the signature.
// Otherwise returns `failed` unchanged.
Status BlameShapes(const Status& failed, const tensor::Signature& signature,
                   const tensor::TensorList& inputs) {
  if (!MayComeFromShapes(failed.code())) return failed;
  for (size_t i = 0; i < std::min(inputs.size(), signature.inputs.size()); ++i) {
    const tensor::TensorSpec& spec = signature.inputs[i];
    const tensor::TensorView view = tensor::ViewTensor(inputs, i);
    if (tensor::ShapeFits(view.dims, spec)) continue;
    return base::InvalidArgument(
        "input '" + spec.name + "' is " + tensor::DescribeTensor(view.dtype, true, view.dims) +
        ", signature '" + signature.name + "' names " + tensor::DescribeTensor(spec) +
        ", and the model does not take it: " + failed.message());
  }
  return failed;
}

// Notes the rows of the inputs: the first dimension of the first input for which the signature
// leaves it open.
void NoteRows(const servable::PreparedRun& run) {
  if (run.watch == nullptr || run.signatures.empty()) return;
  const tensor::Signature& signature = *run.signatures.front();
  for (size_t i = 0; i < std::min(run.inputs.size(), signature.inputs.size()); ++i) {
    const tensor::TensorSpec& spec = signature.inputs[i];
    const bool is_open = !spec.is_rank_known ||
                         (!spec.dims.empty() && spec.dims[0] == tensor::TensorSpec::kUnknownSize);
    if (is_open) return run.watch->SetRowCount(tensor::FirstSize(run.inputs, i));
  }
}

}  // namespace

base::StatusOr<const tensor::Signature*> FindSignature(const servable::Servable& servable,
                                                       std::string_view name) {
  if (name.empty()) name = tensor::kDefaultSignatureName;
  const tensor::SignatureMap& signatures = servable.signatures();
  const auto found = signatures.find(name);
  if (found != signatures.end()) return CheckedForServing(found->second);
  std::string message = "Serving signature key \"" + std::string(name) +
                        "\" not found; signatures of " + servable.id().name + " version " +
                        std::to_string(servable.id().version) + ":";
  for (const auto& [other, signature] : signatures) message += " " + other;
  return base::FailedPrecondition(std::move(message));
}

std::string ListNames(const std::vector<std::string_view>& names) {
  std::string list = "{";
  for (size_t i = 0; i < std::min(names.size(), kMaxListedNames); ++i) {
    if (i > 0) list += ", ";
    list += names[i];
  }
  if (names.size() > kMaxListedNames) {
    list += ", and " + std::to_string(names.size() - kMaxListedNames) + " more";
  }
  return list + "}";
}

Status InputsDiffer(const tensor::Signature& signature, const std::vector<std::string_view>& extra,
                    const std::vector<std::string_view>& missing) {
  std::string message = "inputs do not match signature '" + signature.name + "'.";
  if (!extra.empty()) message += " Sent extra: " + ListNames(extra) + ".";
  if (!missing.empty()) message += " Missing but required: " + ListNames(missing) + ".";
  message += DefaultFaults(signature, missing);
  return base::InvalidArgument(std::move(message));
}

bool UseDefault(const tensor::Signature& signature, size_t index, tensor::TensorList* inputs) {
  const tensor::TensorSpec& spec = signature.inputs[index];
  if (spec.default_value == nullptr) return false;
  tensor::ShareTensor(*spec.default_value, 0, index, inputs);
  return true;
}

base::StatusOr<tensor::OutputSet> SelectOutputs(const std::vector<std::string>& filter,
                                                const tensor::Signature& signature) {
  const size_t output_count = signature.outputs.size();
  if (filter.empty()) return tensor::OutputSet::All(output_count);
  tensor::OutputSet outputs(output_count);
  for (const std::string& name : filter) {
    const int index = tensor::FindTensorSpec(signature.outputs, name);
    if (const tensor::CompositeSpec* composite = FindComposite(signature, name)) {
      return Status(base::Code::kUnimplemented, composite->remedy);
    }
    if (index < 0) return BadFilter(name, "is not an output of", signature);
    if (outputs.Contains(index)) return BadFilter(name, "is named twice for", signature);
    outputs.Add(index);
  }
  return outputs;
}

Status EndRun(servable::PreparedRun* run) {
  if (run->status.ok()) {
    NoteRows(*run);
    run->Enter(metrics::Phase::kEncode, base::MonotonicNs());
    return {};
  }
  for (const tensor::Signature* signature : run->signatures) {
    Status blamed = BlameShapes(run->status, *signature, run->inputs);
    if (blamed.message() != run->status.message()) return blamed;
  }
  return run->status;
}

}  // namespace millpond::inference
