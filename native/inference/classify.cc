#include "native/inference/classify.h"

#include <cstring>
#include <utility>
#include <vector>

#include "native/inference/signature_request.h"
#include "native/inference/tf_example_reply.h"
#include "native/tensor/dtype.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::WireWriter;

constexpr uint32_t kResultClassifications = 1;
constexpr uint32_t kClassificationsClasses = 1;
constexpr uint32_t kClassLabel = 1;
constexpr uint32_t kClassScore = 2;

constexpr std::string_view kLabelsName = "classes";
constexpr std::string_view kScoresName = "scores";

std::optional<size_t> FindOutput(const tensor::Signature& signature, std::string_view name) {
  const int index = tensor::FindTensorSpec(signature.outputs, name);
  if (index < 0) return {};
  return static_cast<size_t>(index);
}

Status CheckOutputNames(const tensor::Signature& signature) {
  const size_t count = signature.outputs.size();
  const bool has_either = FindOutput(signature, kLabelsName) || FindOutput(signature, kScoresName);
  if (has_either && count <= 2) return {};
  std::vector<std::string_view> names;
  for (const auto& output : signature.outputs) names.push_back(output.name);
  return base::InvalidArgument(
      "signature '" + signature.name + "' has the outputs " + ListNames(names) +
      ": Expected one or two output Tensors, at least one of \"classes\" or \"scores\"");
}

// One class of one example, as its fields on the wire. Zeros and empty strings are left out.
class EncodedClass {
 public:
  EncodedClass(const Classifications& all, int64_t example, int64_t number) {
    if (all.has_labels()) label_ = all.label(example, number);
    const float score = all.has_scores() ? all.score(example, number) : 0;
    std::memcpy(&score_bits_, &score, sizeof score);
  }
  size_t bytes() const {
    return (label_.empty() ? 0 : base::DelimitedBytes(kClassLabel, label_.size())) +
           (score_bits_ == 0 ? 0 : base::TagBytes(kClassScore) + sizeof score_bits_);
  }
  void Write(WireWriter* writer) const {
    if (!label_.empty()) writer->BytesField(kClassLabel, label_);
    if (score_bits_ == 0) return;
    writer->Tag(kClassScore, base::WireType::kFixed32);
    writer->Bytes(&score_bits_, sizeof score_bits_);
  }

 private:
  std::string_view label_;
  uint32_t score_bits_ = 0;
};

size_t ClassesBytes(const Classifications& all, int64_t example, base::ReplyLook* look) {
  size_t bytes = 0;
  for (int64_t i = 0; i < all.class_count() && look->Count(); ++i) {
    bytes += base::DelimitedBytes(kClassificationsClasses, EncodedClass(all, example, i).bytes());
  }
  return bytes;
}

void WriteClasses(const Classifications& all, int64_t example, base::ReplyLook* look,
                  WireWriter* writer) {
  for (int64_t i = 0; i < all.class_count() && look->Count(); ++i) {
    const EncodedClass encoded(all, example, i);
    writer->Delimited(kClassificationsClasses, encoded.bytes());
    encoded.Write(writer);
  }
}

}  // namespace

float Classifications::score(int64_t example, int64_t number) const {
  const auto at = static_cast<size_t>(example * class_count_ + number) * sizeof(float);
  float value = 0;
  std::memcpy(&value, score_bytes_.data() + at, sizeof value);
  return value;
}

Status Classifications::CheckOutput(size_t index, int dtype) const {
  const tensor::TensorView view = tensor::ViewTensor(tensors_, index);
  if (view.dtype == dtype && view.dims.size() == 2 && view.dims[0] == example_count_) return {};
  return base::InvalidArgument(
      "signature '" + signature_->name + "': Expected " + signature_->outputs[index].name +
      " Tensor of shape [batch_size num_classes], " +
      tensor::DescribeTensor(dtype, true, {example_count_, tensor::TensorSpec::kUnknownSize}) +
      ", but got " + tensor::DescribeTensor(view.dtype, true, view.dims));
}

// Sets the number of classes from the outputs that the signature has. CheckOutput has checked them
// before.
Status Classifications::SetClassCount() {
  const auto count_of = [this](size_t index) {
    return tensor::ViewTensor(tensors_, index).dims[1];
  };
  class_count_ = count_of(labels_ ? *labels_ : *scores_);
  if (!scores_ || count_of(*scores_) == class_count_) return {};
  return base::InvalidArgument(
      "signature '" + signature_->name + "': classes and scores should match in dim_size(1). Got " +
      std::to_string(class_count_) + " vs. " + std::to_string(count_of(*scores_)));
}

Status Classifications::Read(const tensor::Signature& signature, int64_t example_count,
                             tensor::TensorList tensors) {
  signature_ = &signature;
  tensors_ = std::move(tensors);
  example_count_ = example_count;
  labels_ = FindOutput(signature, kLabelsName);
  scores_ = FindOutput(signature, kScoresName);
  if (labels_) MILLPOND_RETURN_IF_ERROR(CheckOutput(*labels_, tensor::dtype::kString));
  if (scores_) {
    MILLPOND_RETURN_IF_ERROR(CheckOutput(*scores_, tensor::dtype::kFloat));
    score_bytes_ = tensor::ViewTensor(tensors_, *scores_).bytes;
  }
  return SetClassCount();
}

base::StatusOr<const tensor::Signature*> FindClassifySignature(const servable::Servable& servable,
                                                               std::string_view name) {
  auto signature = FindExampleSignature(servable, name, kClassifyMethodName);
  if (!signature.ok()) return signature;
  MILLPOND_RETURN_IF_ERROR(CheckOutputNames(*signature.value()));
  return signature;
}

Status PrepareClassify(const servable::Servable& servable, std::string_view signature_name,
                       tensor::TensorList examples, servable::PreparedRun* run) {
  const auto signature = FindClassifySignature(servable, signature_name);
  if (!signature.ok()) return signature.status();
  return PrepareOnExamples(servable, *signature.value(), std::move(examples), run);
}

base::StatusOr<Classifications> ClassificationsOf(servable::PreparedRun* run) {
  const int64_t count = tensor::FirstSize(run->inputs, 0);
  Classifications classifications;
  MILLPOND_RETURN_IF_ERROR(
      classifications.Read(*run->signatures.front(), count, std::move(run->results.front())));
  return classifications;
}

base::StatusOr<base::ReplyBytes> EncodeClassifications(const Classifications& classifications,
                                                       const base::ReplyLimits& limits) {
  base::ReplyBuffer result(limits);
  base::ReplyLook look(&result);
  std::vector<size_t> classes_bytes;
  classes_bytes.reserve(classifications.example_count());
  size_t bytes = 0;
  for (int64_t i = 0; i < classifications.example_count() && look.Count(); ++i) {
    classes_bytes.push_back(ClassesBytes(classifications, i, &look));
    bytes += base::DelimitedBytes(kResultClassifications, classes_bytes.back());
  }
  char* const to = result.Extend(bytes);
  if (to == nullptr) return result.status();
  WireWriter writer(to);
  for (int64_t i = 0; i < classifications.example_count() && look.Count(); ++i) {
    writer.Delimited(kResultClassifications, classes_bytes[i]);
    WriteClasses(classifications, i, &look, &writer);
  }
  return result.Take();
}

Status PrepareClassify(const servable::Servable& servable, const ExampleRequest& request,
                       Prepared<base::ReplyBytes>* prepared) {
  tensor::TensorList examples;
  MILLPOND_RETURN_IF_ERROR(request.input.MakeTensor(&examples));
  MILLPOND_RETURN_IF_ERROR(
      PrepareClassify(servable, SignatureNameOf(request), std::move(examples), &prepared->run));
  prepared->encode = [](servable::PreparedRun* run, base::ReplyBytes* reply) {
    return EncodeExampleRun(*run, ClassificationsOf(run), EncodeClassifications, reply);
  };
  return {};
}

}  // namespace millpond::inference
