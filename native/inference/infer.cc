#include "native/inference/infer.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "native/base/limits.h"
#include "native/inference/infer_datatype.h"
#include "native/inference/signature_request.h"
#include "native/tensor/dtype.h"
#include "native/tensor/signature.h"

namespace millpond::inference {
namespace {

using base::Status;

constexpr std::string_view kSignatureName = "signature_name";
constexpr std::string_view kSharedMemoryPrefix = "shared_memory_";

Status Unsupported(const InferParameter& parameter, const char* remedy) {
  return {base::Code::kUnimplemented,
          "parameter '" + parameter.name + "' is not supported: " + remedy};
}

Status CheckTensorParameter(const InferParameter& parameter) {
  if (!parameter.IsSet()) return {};
  if (parameter.name.rfind(kSharedMemoryPrefix, 0) == 0) {
    return Unsupported(parameter,
                       "the server does not map clients' memory; send the tensor itself");
  }
  if (parameter.name == "classification") {
    return Unsupported(parameter,
                       "request the tensor itself, or use the model's classify signature");
  }
  return {};
}

Status CheckParameters(const InferRequest& request) {
  for (const InferParameter& parameter : request.parameters) {
    if (parameter.name == kSignatureName && parameter.IsSet() && parameter.text.empty()) {
      return {base::Code::kInvalidArgument,
              "parameter 'signature_name' is no text; it takes the name of a signature"};
    }
    if (parameter.name == "sequence_id" && parameter.IsSet()) {
      return Unsupported(parameter, "models keep no state between requests; leave it out");
    }
  }
  for (const InferParameter& parameter : request.tensor_parameters) {
    MILLPOND_RETURN_IF_ERROR(CheckTensorParameter(parameter));
  }
  return {};
}

std::string_view SignatureNameOf(const InferRequest& request) {
  for (const InferParameter& parameter : request.parameters) {
    if (parameter.name == kSignatureName) return parameter.text;
  }
  return {};
}

Status CheckOutputDatatypes(const tensor::Signature& signature, const tensor::OutputSet& outputs) {
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const tensor::TensorSpec& spec = signature.outputs[i];
    if (outputs.Contains(i) && DatatypeName(spec.dtype).empty()) {
      return {base::Code::kUnimplemented, "output '" + spec.name + "' is " +
                                              tensor::DtypeName(spec.dtype) +
                                              ", for which the protocol has no datatype; name "
                                              "other outputs, or use Predict"};
    }
  }
  return {};
}

// The index in the request's inputs of each input of a signature, or kNone if the request does not
// send it.
using SentInputs = std::vector<size_t>;
constexpr size_t kNone = SIZE_MAX;

Status MatchInputs(const InferRequest& request, const tensor::Signature& signature,
                   SentInputs* sent) {
  sent->assign(signature.inputs.size(), kNone);
  std::vector<std::string_view> extra;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string& name = request.inputs[i].name;
    const int index = tensor::FindTensorSpec(signature.inputs, name);
    if (index < 0) {
      extra.push_back(name);
    } else if ((*sent)[index] != kNone) {
      return base::InvalidArgument("duplicate input '" + name + "'; send it once");
    } else {
      (*sent)[index] = i;
    }
  }
  std::vector<std::string_view> missing;
  for (size_t i = 0; i < sent->size(); ++i) {
    const tensor::TensorSpec& spec = signature.inputs[i];
    if ((*sent)[i] == kNone && spec.default_value == nullptr) missing.push_back(spec.name);
  }
  return extra.empty() && missing.empty() ? Status() : InputsDiffer(signature, extra, missing);
}

base::StatusOr<int64_t> CountElements(const std::vector<int64_t>& dims) {
  if (dims.size() > base::kMaxTensorRank) {
    return base::InvalidArgument("shape has more dimensions than the " +
                                 std::to_string(base::kMaxTensorRank) + " that TensorFlow takes");
  }
  int64_t count = 1;
  for (const int64_t size : dims) {
    if (size < 0) {
      return base::InvalidArgument("shape has a dimension of size " + std::to_string(size) +
                                   "; sizes are 0 or more");
    }
    if (__builtin_mul_overflow(count, size, &count)) {
      return base::InvalidArgument("shape has more than 2^63 elements");
    }
  }
  return count;
}

Status ReadInput(const InferRequest& request, size_t input, const tensor::TensorSpec& spec,
                 const InferElements& elements, size_t index, tensor::TensorList* tensors) {
  const InferRequest::Input& sent = request.inputs[input];
  const int dtype = DtypeOf(sent.datatype);
  if (dtype == 0) {
    return base::InvalidArgument("unknown datatype '" + sent.datatype +
                                 "'; use a datatype of the protocol, such as INT64, FP32 or BYTES");
  }
  const base::StatusOr<int64_t> count = CountElements(sent.dims);
  if (!count.ok()) return count.status();
  if (!tensor::TensorFits(dtype, sent.dims, spec)) {
    return base::InvalidArgument("expected " + tensor::DescribeTensor(spec) + ", got " +
                                 tensor::DescribeTensor(dtype, true, sent.dims));
  }
  return elements.Read(input, dtype, sent.dims, count.value(), index, tensors);
}

// Reads each input into its place in the signature's order. Inputs that are not sent get their
// defaults.
Status ReadInputs(const InferRequest& request, const tensor::Signature& signature,
                  const InferElements& elements, tensor::TensorList* inputs) {
  SentInputs sent;
  MILLPOND_RETURN_IF_ERROR(MatchInputs(request, signature, &sent));
  inputs->Reset(signature.inputs.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i] == kNone && UseDefault(signature, i, inputs)) continue;
    const Status read = ReadInput(request, sent[i], signature.inputs[i], elements, i, inputs);
    if (!read.ok()) {
      return {read.code(), "input '" + signature.inputs[i].name + "': " + read.message() +
                               "; signature '" + signature.name + "'"};
    }
  }
  return {};
}

// Lists the outputs in the signature's order, which is also the order in which a run returns them.
void DescribeOutputs(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                     std::vector<InferReplyOutput>* described) {
  described->reserve(outputs.size());
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const tensor::TensorSpec& spec = signature.outputs[i];
    if (!outputs.Contains(i)) continue;
    described->push_back({&spec.name, DatatypeName(spec.dtype), described->size()});
  }
}

}  // namespace

// The number of a version that a text of digits names, unless it is above all versions.
std::optional<int64_t> VersionNumber(std::string_view text) {
  if (text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const std::from_chars_result read = std::from_chars(text.begin(), text.end(), number);
  if (read.ec != std::errc{}) return std::nullopt;
  return number;
}

void SetModelVersion(const std::string& model_version, ModelSpec* spec) {
  spec->version.reset();
  spec->version_label.reset();
  if (model_version.empty()) return;
  spec->version = VersionNumber(model_version);
  if (!spec->version) spec->version_label = model_version;
}

Status PrepareInfer(const servable::Servable& servable, const InferRequest& request,
                    const InferElements& elements, servable::PreparedRun* run) {
  MILLPOND_RETURN_IF_ERROR(CheckParameters(request));
  const auto signature = FindSignature(servable, SignatureNameOf(request));
  if (!signature.ok()) return signature.status();
  auto outputs = SelectOutputs(request.outputs, *signature.value());
  if (!outputs.ok()) return outputs.status();
  MILLPOND_RETURN_IF_ERROR(CheckOutputDatatypes(*signature.value(), outputs.value()));
  MILLPOND_RETURN_IF_ERROR(ReadInputs(request, *signature.value(), elements, &run->inputs));
  run->servable = &servable;
  run->signatures = {signature.value()};
  run->outputs = std::move(outputs.value());
  return {};
}

InferReply InferReplyOf(std::string id, servable::PreparedRun* run) {
  InferReply reply;
  reply.tensors = std::move(run->results.front());
  DescribeOutputs(*run->signatures.front(), *run->outputs, &reply.outputs);
  reply.model_name = run->servable->id().name;
  reply.version = run->servable->id().version;
  reply.id = std::move(id);
  return reply;
}

}  // namespace millpond::inference
