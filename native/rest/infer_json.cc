#include "native/rest/infer_json.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/inference/infer.h"
#include "native/inference/raw_elements.h"
#include "native/rest/infer_body.h"
#include "native/rest/json_number_writer.h"
#include "native/rest/json_reader.h"
#include "native/rest/json_writer.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {
namespace {

using base::Status;

constexpr size_t kExpectedOverheadBytes = 512;

// Splits the body into its JSON and the bytes after it.
Status SplitBody(std::string_view body, std::optional<std::string_view> header,
                 std::string_view* json, std::string_view* binary) {
  *json = body;
  if (!header) return {};
  size_t json_bytes = 0;
  const char* const end = header->data() + header->size();
  const auto parsed = std::from_chars(header->data(), end, json_bytes);
  if (parsed.ec != std::errc() || parsed.ptr != end || json_bytes > body.size()) {
    return base::InvalidArgument("the header Inference-Header-Content-Length is '" +
                                 std::string(*header) + "', the body has " +
                                 std::to_string(body.size()) + " bytes");
  }
  *json = body.substr(0, json_bytes);
  *binary = body.substr(json_bytes);
  return {};
}

// One output of a reply, before it is written as JSON.
struct Output {
  const inference::InferReplyOutput& described;
  tensor::TensorView tensor;
  std::optional<size_t> binary_bytes;
};

Status WriteStrings(const Output& output, const tensor::TensorList& tensors, JsonWriter* json) {
  for (int64_t i = 0; i < output.tensor.element_count && json->ok(); ++i) {
    const std::string_view value = tensor::StringAt(tensors, output.described.tensor_index, i);
    if (!base::IsValidUtf8(value)) {
      return base::InvalidArgument("output '" + *output.described.name + "': element " +
                                   std::to_string(i) +
                                   " is not UTF-8, which JSON cannot hold; request the "
                                   "output with the parameter binary_data");
    }
    if (i > 0) json->Raw(", ");
    json->String(value);
  }
  return {};
}

// Writes the elements flat, in row-major order.
Status WriteElements(const Output& output, const tensor::TensorList& tensors, JsonWriter* json) {
  if (output.tensor.dtype == tensor::dtype::kString) return WriteStrings(output, tensors, json);
  WriteNumbers(output.tensor, 0, output.tensor.element_count, json);
  return {};
}

// True if the request selects binary data for the output: by the output's own parameter, or
// otherwise by the parameter for all outputs.
bool IsBinary(const InferBody& body, const std::string& name) {
  const auto& names = body.request.outputs;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return body.is_binary_by_default;
  return body.is_binary[found - names.begin()].value_or(body.is_binary_by_default);
}

std::vector<Output> DescribeOutputs(const InferBody& body, const inference::InferReply& infer,
                                    base::ReplyBuffer* reply) {
  std::vector<Output> outputs;
  outputs.reserve(infer.outputs.size());
  for (const inference::InferReplyOutput& described : infer.outputs) {
    Output output{described, tensor::ViewTensor(infer.tensors, described.tensor_index), {}};
    if (IsBinary(body, *described.name)) {
      output.binary_bytes =
          inference::RawElementBytes(output.tensor, infer.tensors, described.tensor_index, reply);
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

Status WriteOutput(const Output& output, const tensor::TensorList& tensors, JsonWriter* json) {
  json->Raw("{\"name\":");
  json->String(*output.described.name);
  json->Raw(",\"datatype\":");
  json->String(output.described.datatype);
  json->Raw(",\"shape\":[");
  for (size_t i = 0; i < output.tensor.dims.size(); ++i) {
    if (i > 0) json->Raw(',');
    json->Number(output.tensor.dims[i]);
  }
  if (output.binary_bytes) {
    json->Raw("],\"parameters\":{\"binary_data_size\":");
    json->Number(*output.binary_bytes);
    json->Raw("}}");
    return {};
  }
  json->Raw("],\"data\":[");
  MILLPOND_RETURN_IF_ERROR(WriteElements(output, tensors, json));
  json->Raw("]}");
  return {};
}

void WriteHead(const inference::InferReply& infer, JsonWriter* json) {
  json->Raw("{\"model_name\":");
  json->String(infer.model_name);
  json->Raw(",\"model_version\":");
  json->String(std::to_string(infer.version));
  if (!infer.id.empty()) {
    json->Raw(",\"id\":");
    json->String(infer.id);
  }
  json->Raw(",\"outputs\":[");
}

// Appends the binary tensors to the JSON, in the order of their outputs.
void AppendBinary(const std::vector<Output>& outputs, const tensor::TensorList& tensors,
                  base::ReplyBuffer* buffer, RestReply* reply) {
  size_t binary_bytes = 0;
  for (const Output& output : outputs) binary_bytes += output.binary_bytes.value_or(0);
  reply->json_bytes = buffer->size();
  reply->content_type = "application/octet-stream";
  char* const to = buffer->Extend(binary_bytes);
  if (to == nullptr) return;
  base::WireWriter writer(to);
  for (const Output& output : outputs) {
    if (!output.binary_bytes) continue;
    inference::WriteRawElements(output.tensor, tensors, output.described.tensor_index, buffer,
                                &writer);
  }
}

Status WriteReply(const InferBody& body, const inference::InferReply& infer,
                  const tensor::RunContext& run, RestReply* reply) {
  JsonWriter json(run.reply_limits());
  const std::vector<Output> outputs = DescribeOutputs(body, infer, json.reply());
  size_t element_count = 0;
  bool has_binary = false;
  for (const Output& output : outputs) {
    has_binary |= output.binary_bytes.has_value();
    if (!output.binary_bytes) element_count += static_cast<size_t>(output.tensor.element_count);
  }
  json.reply()->Expect(kExpectedOverheadBytes + kExpectedElementBytes * element_count);
  WriteHead(infer, &json);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i > 0) json.Raw(',');
    MILLPOND_RETURN_IF_ERROR(WriteOutput(outputs[i], infer.tensors, &json));
  }
  json.Raw("]}");
  if (has_binary) AppendBinary(outputs, infer.tensors, json.reply(), reply);
  return base::MoveValue(json.Take(), &reply->body);
}

}  // namespace

Status PrepareModelInfer(const servable::Servable& servable, std::string_view body,
                         std::optional<std::string_view> json_bytes_header,
                         PreparedRest* prepared) {
  std::string_view json_text;
  std::string_view binary;
  MILLPOND_RETURN_IF_ERROR(SplitBody(body, json_bytes_header, &json_text, &binary));
  JsonReader json(json_text);
  const auto request = std::make_shared<InferBody>();
  MILLPOND_RETURN_IF_ERROR(ReadInferBody(&json, binary, request.get()));
  MILLPOND_RETURN_IF_ERROR(inference::PrepareInfer(servable, request->request,
                                                   BodyElements(*request, &json), &prepared->run));
  prepared->encode = [request](servable::PreparedRun* run, RestReply* reply) {
    const auto infer = inference::InferReplyOf(request->request.id, run);
    return WriteReply(*request, infer, run->context, reply);
  };
  return {};
}

}  // namespace millpond::rest
