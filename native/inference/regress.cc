#include "native/inference/regress.h"

#include <cstring>
#include <utility>
#include <vector>

#include "native/inference/signature_request.h"
#include "native/inference/tf_example_reply.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

using base::Status;

constexpr uint32_t kResultRegressions = 1;
constexpr uint32_t kRegressionValue = 1;

constexpr std::string_view kOutputName = "outputs";

Status CheckOutput(const tensor::Signature& signature, const tensor::TensorView& view,
                   int64_t count) {
  const bool is_column = view.dims.size() == 1 || (view.dims.size() == 2 && view.dims[1] == 1);
  if (view.dtype == tensor::dtype::kFloat && is_column && view.dims[0] == count) return {};
  return base::InvalidArgument(
      "signature '" + signature.name +
      "': Expected output Tensor shape to be either [batch_size] or [batch_size, 1], " +
      tensor::DescribeTensor(tensor::dtype::kFloat, true, {count}) + ", but got " +
      tensor::DescribeTensor(view.dtype, true, view.dims));
}

// Returns the bits of one value. On the wire, zero is left out, but minus zero is not.
uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

size_t RegressionBytes(float value) {
  return BitsOf(value) == 0 ? 0 : base::TagBytes(kRegressionValue) + sizeof value;
}

}  // namespace

float Regressions::value(int64_t example) const {
  float value = 0;
  std::memcpy(&value, value_bytes_.data() + static_cast<size_t>(example) * sizeof value,
              sizeof value);
  return value;
}

Status Regressions::Read(const tensor::Signature& signature, int64_t example_count,
                         tensor::TensorList tensors) {
  signature_ = &signature;
  tensors_ = std::move(tensors);
  example_count_ = example_count;
  const tensor::TensorView view = tensor::ViewTensor(tensors_, 0);
  value_bytes_ = view.bytes;
  return CheckOutput(signature, view, example_count);
}

base::StatusOr<const tensor::Signature*> FindRegressSignature(const servable::Servable& servable,
                                                              std::string_view name) {
  auto found = FindExampleSignature(servable, name, kRegressMethodName);
  if (!found.ok()) return found;
  const tensor::Signature& signature = *found.value();
  if (signature.outputs.size() == 1 && signature.outputs[0].name == kOutputName) return found;
  std::vector<std::string_view> names;
  for (const auto& output : signature.outputs) names.push_back(output.name);
  return base::InvalidArgument("signature '" + signature.name + "' has the outputs " +
                               ListNames(names) + ": Expected one output Tensor, \"outputs\"");
}

Status PrepareRegress(const servable::Servable& servable, std::string_view signature_name,
                      tensor::TensorList examples, servable::PreparedRun* run) {
  const auto signature = FindRegressSignature(servable, signature_name);
  if (!signature.ok()) return signature.status();
  return PrepareOnExamples(servable, *signature.value(), std::move(examples), run);
}

base::StatusOr<Regressions> RegressionsOf(servable::PreparedRun* run) {
  const int64_t count = tensor::FirstSize(run->inputs, 0);
  Regressions regressions;
  MILLPOND_RETURN_IF_ERROR(
      regressions.Read(*run->signatures.front(), count, std::move(run->results.front())));
  return regressions;
}

base::StatusOr<base::ReplyBytes> EncodeRegressions(const Regressions& regressions,
                                                   const base::ReplyLimits& limits) {
  base::ReplyBuffer result(limits);
  base::ReplyLook look(&result);
  size_t bytes = 0;
  for (int64_t i = 0; i < regressions.example_count() && look.Count(); ++i) {
    bytes += base::DelimitedBytes(kResultRegressions, RegressionBytes(regressions.value(i)));
  }
  char* const to = result.Extend(bytes);
  if (to == nullptr) return result.status();
  base::WireWriter writer(to);
  for (int64_t i = 0; i < regressions.example_count() && look.Count(); ++i) {
    const uint32_t bits = BitsOf(regressions.value(i));
    writer.Delimited(kResultRegressions, RegressionBytes(regressions.value(i)));
    if (bits == 0) continue;
    writer.Tag(kRegressionValue, base::WireType::kFixed32);
    writer.Bytes(&bits, sizeof bits);
  }
  return result.Take();
}

Status PrepareRegress(const servable::Servable& servable, const ExampleRequest& request,
                      Prepared<base::ReplyBytes>* prepared) {
  tensor::TensorList examples;
  MILLPOND_RETURN_IF_ERROR(request.input.MakeTensor(&examples));
  MILLPOND_RETURN_IF_ERROR(
      PrepareRegress(servable, SignatureNameOf(request), std::move(examples), &prepared->run));
  prepared->encode = [](servable::PreparedRun* run, base::ReplyBytes* reply) {
    return EncodeExampleRun(*run, RegressionsOf(run), EncodeRegressions, reply);
  };
  return {};
}

}  // namespace millpond::inference
