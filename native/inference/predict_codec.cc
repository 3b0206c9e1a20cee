#include "native/inference/predict_codec.h"

#include "native/base/limits.h"
#include "native/tensor/tensor_access.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using base::WireTag;
using base::WireType;
using base::WireWriter;

constexpr uint32_t kRequestModelSpec = 1;
constexpr uint32_t kRequestInputs = 2;
constexpr uint32_t kRequestOutputFilter = 3;
constexpr uint32_t kSpecName = 1;
constexpr uint32_t kSpecSignatureName = 3;
constexpr uint32_t kResponseOutputs = 1;
constexpr uint32_t kResponseModelSpec = 2;
constexpr uint32_t kMapKey = 1;
constexpr uint32_t kMapValue = 2;

// Reads one entry of map<string, TensorProto>. Protobuf would merge two values of one entry.
// Encoders do not write two values, so such an entry is refused.
bool ReadInput(WireReader entry, PredictRequest::Input* input) {
  WireTag tag;
  bool has_value = false;
  while (!entry.AtEnd()) {
    if (!entry.ReadTag(&tag)) return false;
    if (tag.field == kMapKey && tag.type == WireType::kLengthDelimited) {
      if (!entry.ReadString(&input->name)) return false;
    } else if (tag.field == kMapValue && tag.type == WireType::kLengthDelimited) {
      if (has_value || !entry.ReadDelimited(&input->tensor)) return false;
      has_value = true;
    } else if (!entry.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ReadField(WireTag tag, WireReader* proto, PredictRequest* request) {
  WireReader body;
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  if (tag.field == kRequestModelSpec) {
    if (!request->model_spec) request->model_spec.emplace();
    return proto->ReadDelimited(&body) && ReadModelSpec(body, &*request->model_spec);
  }
  if (tag.field == kRequestInputs) {
    return proto->ReadDelimited(&body) && ReadInput(body, &request->inputs.emplace_back());
  }
  if (tag.field == kRequestOutputFilter) {
    return proto->ReadString(&request->output_filter.emplace_back());
  }
  return proto->SkipField(tag);
}

// The most compact encoding for numbers; written with one copy.
constexpr auto kRequestEncoding = tensor::TensorEncoding::kTensorContent;

size_t SpecBytes(const PredictRequestParts& parts) {
  return base::DelimitedBytes(kSpecName, parts.model_name.size()) +
         base::DelimitedBytes(kSpecSignatureName, parts.signature.name.size());
}

size_t InputBytes(const PredictRequestParts& parts, size_t index, size_t tensor_bytes) {
  return base::DelimitedBytes(kMapKey, parts.signature.inputs[index].name.size()) +
         base::DelimitedBytes(kMapValue, tensor_bytes);
}

// Returns true if the input is in the request. The default has its own elements, so an input with
// these elements was not sent.
bool IsSent(const PredictRequestParts& parts, size_t index) {
  const tensor::TensorSpec& input = parts.signature.inputs[index];
  if (parts.input_names != nullptr && !parts.input_names->Contains(input.name)) return false;
  const auto& default_value = input.default_value;
  return default_value == nullptr || !tensor::IsSameTensor(parts.inputs, index, *default_value, 0);
}

// Calls `call` with the name of each output that the output_filter has to name.
template <typename Call>
void ForEachFilterName(const PredictRequestParts& parts, Call call) {
  if (parts.outputs.IsAll()) return;
  const auto& outputs = parts.signature.outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (parts.outputs.Contains(i)) call(outputs[i].name);
  }
}

size_t EntryBytes(const PredictReply::Output& output, size_t tensor_bytes) {
  return base::DelimitedBytes(kMapKey, output.name->size()) +
         base::DelimitedBytes(kMapValue, tensor_bytes);
}

bool HasTooManyNames(const PredictRequest& request) {
  return request.inputs.size() > base::kMaxNamesPerRequest ||
         request.output_filter.size() > base::kMaxNamesPerRequest;
}

}  // namespace

base::Status DecodePredictRequest(WireReader proto, PredictRequest* request) {
  const size_t message_bytes = proto.remaining_bytes();
  WireTag tag;
  while (!proto.AtEnd()) {
    if (HasTooManyNames(*request)) {
      return base::InvalidArgument("the request names more than " +
                                   std::to_string(base::kMaxNamesPerRequest) +
                                   " inputs or outputs; no signature has that many");
    }
    if (proto.ReadTag(&tag) && ReadField(tag, &proto, request)) continue;
    return base::InvalidArgument("the message's " + std::to_string(message_bytes) +
                                 " bytes are not a tensorflow.serving.PredictRequest");
  }
  return {};
}

size_t EncodedPredictRequestBytes(const PredictRequestParts& parts) {
  size_t bytes = base::DelimitedBytes(kRequestModelSpec, SpecBytes(parts));
  for (size_t i = 0; i < parts.inputs.size(); ++i) {
    if (!IsSent(parts, i)) continue;
    const size_t tensor_bytes =
        tensor::EncodedTensorBytes(parts.inputs, i, kRequestEncoding, nullptr);
    bytes += base::DelimitedBytes(kRequestInputs, InputBytes(parts, i, tensor_bytes));
  }
  ForEachFilterName(parts, [&](const std::string& name) {
    bytes += base::DelimitedBytes(kRequestOutputFilter, name.size());
  });
  return bytes;
}

void WritePredictRequest(const PredictRequestParts& parts, WireWriter* writer) {
  writer->Delimited(kRequestModelSpec, SpecBytes(parts));
  writer->BytesField(kSpecName, parts.model_name);
  writer->BytesField(kSpecSignatureName, parts.signature.name);
  for (size_t i = 0; i < parts.inputs.size(); ++i) {
    if (!IsSent(parts, i)) continue;
    const size_t tensor_bytes =
        tensor::EncodedTensorBytes(parts.inputs, i, kRequestEncoding, nullptr);
    writer->Delimited(kRequestInputs, InputBytes(parts, i, tensor_bytes));
    writer->BytesField(kMapKey, parts.signature.inputs[i].name);
    writer->Delimited(kMapValue, tensor_bytes);
    tensor::EncodeTensor(parts.inputs, i, kRequestEncoding, nullptr, writer);
  }
  ForEachFilterName(
      parts, [&](const std::string& name) { writer->BytesField(kRequestOutputFilter, name); });
}

PredictReplyWriter::PredictReplyWriter(const PredictReply& reply, base::ReplyBuffer* buffer)
    : reply_(reply),
      buffer_(buffer),
      spec_bytes_(EncodedModelSpecBytes(reply.model_spec)),
      bytes_(base::DelimitedBytes(kResponseModelSpec, spec_bytes_)) {
  tensor_bytes_.reserve(reply.outputs.size());
  for (const PredictReply::Output& output : reply.outputs) {
    tensor_bytes_.push_back(
        tensor::EncodedTensorBytes(reply.tensors, output.tensor_index, reply.encoding, buffer));
    bytes_ += base::DelimitedBytes(kResponseOutputs, EntryBytes(output, tensor_bytes_.back()));
  }
}

void PredictReplyWriter::Write(WireWriter* writer) const {
  for (size_t i = 0; i < reply_.outputs.size(); ++i) {
    const PredictReply::Output& output = reply_.outputs[i];
    writer->Delimited(kResponseOutputs, EntryBytes(output, tensor_bytes_[i]));
    writer->BytesField(kMapKey, *output.name);
    writer->Delimited(kMapValue, tensor_bytes_[i]);
    tensor::EncodeTensor(reply_.tensors, output.tensor_index, reply_.encoding, buffer_, writer);
  }
  writer->Delimited(kResponseModelSpec, spec_bytes_);
  WriteModelSpec(reply_.model_spec, writer);
}

base::StatusOr<base::ReplyBytes> EncodePredictReply(const PredictReply& reply,
                                                    const base::ReplyLimits& limits) {
  base::ReplyBuffer buffer(limits);
  const PredictReplyWriter response(reply, &buffer);
  char* const to = buffer.Extend(response.bytes());
  if (to == nullptr) return buffer.status();
  WireWriter writer(to);
  response.Write(&writer);
  return buffer.Take();
}

}  // namespace millpond::inference
