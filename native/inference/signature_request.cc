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

// Accepts the method names of predict, classify and regress for all requests, as TensorFlow
// Serving's Predict does.
base::StatusOr<const tf::Signature*> CheckedForServing(const tf::Signature& signature) {
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

Status BadFilter(const std::string& name, const char* what, const tf::Signature& signature) {
  std::vector<std::string_view> outputs;
  for (const auto& spec : signature.outputs) outputs.push_back(spec.name);
  return base::InvalidArgument("output_filter '" + name + "' " + what + " signature '" +
                               signature.name + "', which has " + ListNames(outputs));
}

// Returns true for the codes with which kernels refuse shapes; oneDNN's kernels use ABORTED. Other
// codes have causes of their own: a deadline, a missing table, memory.
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
Status BlameShapes(const Status& failed, const tf::Signature& signature,
                   const tf::TensorList& inputs) {
  if (!MayComeFromShapes(failed.code())) return failed;
  for (size_t i = 0; i < std::min(inputs.size(), signature.inputs.size()); ++i) {
    const tf::TensorSpec& spec = signature.inputs[i];
    const tf::TensorView view = tf::ViewTensor(inputs, i);
    if (tf::ShapeFits(view.dims, spec)) continue;
    return base::InvalidArgument("input '" + spec.name + "' is " +
                                 tf::DescribeTensor(view.dtype, true, view.dims) + ", signature '" +
                                 signature.name + "' names " + tf::DescribeTensor(spec) +
                                 ", and the model does not take it: " + failed.message());
  }
  return failed;
}

Status RunEach(const servable::Servable& servable,
               const std::vector<const tf::Signature*>& signatures, const tf::RunContext& run,
               const tf::TensorList& inputs, std::vector<tf::TensorList>* results) {
  results->resize(signatures.size());
  for (size_t i = 0; i < signatures.size(); ++i) {
    const tf::OutputSet all = tf::OutputSet::All(signatures[i]->outputs.size());
    MILLPOND_RETURN_IF_ERROR(servable.Run(*signatures[i], all, run, inputs, &(*results)[i]));
  }
  return {};
}

}  // namespace

base::StatusOr<const tf::Signature*> FindSignature(const servable::Servable& servable,
                                                   std::string_view name) {
  if (name.empty()) name = tf::kDefaultSignatureName;
  const tf::SignatureMap& signatures = servable.signatures();
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

Status InputsDiffer(const tf::Signature& signature, const std::vector<std::string_view>& extra,
                    const std::vector<std::string_view>& missing) {
  std::string message = "inputs do not match signature '" + signature.name + "'.";
  if (!extra.empty()) message += " Sent extra: " + ListNames(extra) + ".";
  if (!missing.empty()) message += " Missing but required: " + ListNames(missing) + ".";
  return base::InvalidArgument(std::move(message));
}

base::StatusOr<tf::OutputSet> SelectOutputs(const std::vector<std::string>& filter,
                                            const tf::Signature& signature) {
  const size_t output_count = signature.outputs.size();
  if (filter.empty()) return tf::OutputSet::All(output_count);
  tf::OutputSet outputs(output_count);
  for (const std::string& name : filter) {
    const int index = tf::FindTensorSpec(signature.outputs, name);
    if (index < 0) return BadFilter(name, "is not an output of", signature);
    if (outputs.Contains(index)) return BadFilter(name, "is named twice for", signature);
    outputs.Add(index);
  }
  return outputs;
}

void EnterPhase(metrics::Phase phase, metrics::PhaseWatch* watch) {
  if (watch != nullptr) watch->Enter(phase, base::MonotonicNs());
}

Status RunSignature(const servable::Servable& servable, const tf::Signature& signature,
                    const tf::OutputSet& outputs, const tf::RunContext& run,
                    const tf::TensorList& inputs, tf::TensorList* result,
                    metrics::PhaseWatch* watch) {
  EnterPhase(metrics::Phase::kRun, watch);
  const Status ran = servable.Run(signature, outputs, run, inputs, result);
  if (!ran.ok()) return BlameShapes(ran, signature, inputs);
  EnterPhase(metrics::Phase::kEncode, watch);
  return {};
}

Status RunSignaturesTogether(const servable::Servable& servable,
                             const std::vector<const tf::Signature*>& signatures,
                             const tf::RunContext& run, const tf::TensorList& inputs,
                             std::vector<tf::TensorList>* results, metrics::PhaseWatch* watch) {
  EnterPhase(metrics::Phase::kRun, watch);
  const auto together = servable.RunTogether(signatures, run, inputs, results);
  const Status ran = together ? *together : RunEach(servable, signatures, run, inputs, results);
  if (ran.ok()) {
    EnterPhase(metrics::Phase::kEncode, watch);
    return {};
  }
  for (const tf::Signature* signature : signatures) {
    Status blamed = BlameShapes(ran, *signature, inputs);
    if (blamed.message() != ran.message()) return blamed;
  }
  return ran;
}

}  // namespace millpond::inference
