#include "native/inference/tf_example_request.h"

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/inference/signature_request.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::WireReader;
using base::WireTag;
using base::WireType;

constexpr uint32_t kRequestModelSpec = 1;
constexpr uint32_t kRequestInput = 2;
constexpr uint32_t kExampleList = 1;
constexpr uint32_t kExampleListWithContext = 2;
constexpr uint32_t kListExamples = 1;
constexpr uint32_t kListContext = 2;

constexpr char kInputName[] = "inputs";

// The bytes of a context that take as long to copy as a step of a base::DecodeLook.
constexpr int64_t kBytesPerStep = 16;

bool ReadField(WireTag tag, WireReader* proto, ExampleRequest* request) {
  WireReader body;
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  if (tag.field == kRequestModelSpec) {
    if (!request->model_spec) request->model_spec.emplace();
    return proto->ReadDelimited(&body) && ReadModelSpec(body, &*request->model_spec);
  }
  if (tag.field == kRequestInput) return proto->ReadDelimited(&body) && request->input.Read(body);
  return proto->SkipField(tag);
}

// Writes the examples of `list`, starting at string `*index`. ExampleInput::Read has read the list
// before.
Status WriteExamples(WireReader list, const std::string& context, int64_t* index,
                     tensor::TensorList* examples) {
  const auto unreadable = [] {
    return base::Internal("a list of examples that was read once cannot be read again");
  };
  base::DecodeLook look;
  WireTag tag;
  while (!list.AtEnd()) {
    if (!list.ReadTag(&tag)) return unreadable();
    if (tag.field != kListExamples || tag.type != WireType::kLengthDelimited) {
      if (!list.SkipField(tag)) return unreadable();
      continue;
    }
    WireReader example;
    if (!list.ReadDelimited(&example)) return unreadable();
    const size_t example_bytes = example.remaining_bytes();
    const auto to = tensor::ResizeString(0, (*index)++, context.size() + example_bytes, examples);
    if (!to.ok()) return to.status();
    context.copy(to.value(), context.size());
    if (!example.Copy(to.value() + context.size(), example_bytes)) return unreadable();
    if (!look.Count(1 + static_cast<int64_t>(context.size()) / kBytesPerStep)) {
      return look.status();
    }
  }
  return {};
}

}  // namespace

bool ExampleInput::Read(WireReader proto) {
  WireTag tag;
  WireReader list;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    const bool is_list = tag.type == WireType::kLengthDelimited &&
                         (tag.field == kExampleList || tag.field == kExampleListWithContext);
    if (is_list ? !proto.ReadDelimited(&list) || !ReadList(tag.field, list)
                : !proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ExampleInput::ReadList(uint32_t kind, WireReader list) {
  if (kind != kind_) *this = {};
  kind_ = kind;
  if (lists_.size() >= base::kMaxNamesPerRequest) return false;
  lists_.push_back(list);
  WireTag tag;
  WireReader body;
  while (!list.AtEnd()) {
    if (!list.ReadTag(&tag)) return false;
    if (tag.type == WireType::kLengthDelimited && tag.field == kListExamples) {
      if (!list.ReadDelimited(&body)) return false;
      example_count_ += 1;
      example_bytes_ += body.remaining_bytes();
    } else if (tag.type == WireType::kLengthDelimited && tag.field == kListContext &&
               kind == kExampleListWithContext) {
      if (!list.ReadDelimited(&body)) return false;
      body.AppendRest(&context_);
    } else if (!list.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

Status ExampleInput::MakeTensor(tensor::TensorList* examples) const {
  if (example_count_ == 0) {
    return base::InvalidArgument("Input is empty; send an example_list, with or without context");
  }
  const auto bytes_max = static_cast<size_t>(base::kMaxTensorBytes);
  const auto count = static_cast<size_t>(example_count_);
  if (example_bytes_ > bytes_max || context_.size() > (bytes_max - example_bytes_) / count) {
    return {base::Code::kResourceExhausted,
            std::to_string(count) + " examples of " + std::to_string(example_bytes_) +
                " bytes, each with a context of " + std::to_string(context_.size()) +
                ", are more than the " + std::to_string(bytes_max) + " bytes that a tensor takes"};
  }
  examples->Reset(1);
  MILLPOND_RETURN_IF_ERROR(
      tensor::MakeTensor(tensor::dtype::kString, {example_count_}, 0, examples));
  int64_t index = 0;
  for (const WireReader& list : lists_) {
    MILLPOND_RETURN_IF_ERROR(WriteExamples(list, context_, &index, examples));
  }
  return {};
}

Status DecodeExampleRequest(WireReader proto, const char* message, ExampleRequest* request) {
  const size_t message_bytes = proto.remaining_bytes();
  WireTag tag;
  while (!proto.AtEnd()) {
    if (proto.ReadTag(&tag) && ReadField(tag, &proto, request)) continue;
    return base::InvalidArgument("the message's " + std::to_string(message_bytes) +
                                 " bytes are not a tensorflow.serving." + message);
  }
  return {};
}

base::StatusOr<const tensor::Signature*> FindExampleSignature(const servable::Servable& servable,
                                                              std::string_view name,
                                                              std::string_view method_name) {
  const auto found = FindSignature(servable, name);
  if (!found.ok()) return base::InvalidArgument(found.status().message());
  const tensor::Signature& signature = *found.value();
  if (signature.has_checked_method_name && signature.method_name != method_name) {
    return base::InvalidArgument("signature '" + signature.name + "': Expected method_name to be " +
                                 std::string(method_name) + ". Was: " + signature.method_name);
  }
  if (signature.inputs.size() == 1 && signature.inputs[0].name == kInputName) return &signature;
  std::vector<std::string_view> names;
  for (const auto& input : signature.inputs) names.push_back(input.name);
  return base::InvalidArgument("signature '" + signature.name + "' takes " + ListNames(names) +
                               ": Expected one input Tensor, '" + kInputName +
                               "', of serialized tf.Examples; call Predict");
}

base::StatusOr<int64_t> CountExamples(const tensor::Signature& signature,
                                      const tensor::TensorList& examples) {
  const tensor::TensorView view = tensor::ViewTensor(examples, 0);
  if (!tensor::TensorFits(view.dtype, view.dims, signature.inputs[0])) {
    return base::InvalidArgument(
        "signature '" + signature.name + "': input '" + kInputName + "' is " +
        tensor::DescribeTensor(signature.inputs[0]) + ", and the request's examples are " +
        tensor::DescribeTensor(view.dtype, /*is_rank_known=*/true, view.dims));
  }
  return view.element_count;
}

Status PrepareOnExamples(const servable::Servable& servable, const tensor::Signature& signature,
                         tensor::TensorList examples, servable::PreparedRun* run) {
  MILLPOND_RETURN_IF_ERROR(CountExamples(signature, examples).status());
  run->servable = &servable;
  run->signatures = {&signature};
  run->outputs = tensor::OutputSet::All(signature.outputs.size());
  run->inputs = std::move(examples);
  return {};
}

}  // namespace millpond::inference
