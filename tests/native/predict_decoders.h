#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/log/globals.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "native/inference/predict_codec.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

// The content of a request as text, by which two decoders can be compared.
struct Decoded {
  bool is_ok = false;
  base::Status status;  // of DecodePredictRequest
  std::string text;
  std::vector<std::string> tensors;  // serialized, by ascending name
};

inline void Describe(const std::string& name, const std::string& value, std::string* text) {
  *text += name + "=" + value + ";";
}

inline Decoded DecodeOurs(const std::string& bytes, const std::vector<size_t>& cuts = {}) {
  const SegmentedBytes segmented(bytes, cuts);
  inference::PredictRequest request;
  Decoded decoded;
  decoded.status = inference::DecodePredictRequest(segmented.reader(), &request);
  decoded.is_ok = decoded.status.ok();
  if (!decoded.is_ok) return decoded;
  if (request.model_spec) {
    const inference::ModelSpec& spec = *request.model_spec;
    Describe("name", spec.name, &decoded.text);
    Describe("signature", spec.signature_name, &decoded.text);
    if (spec.version) Describe("version", std::to_string(*spec.version), &decoded.text);
    if (spec.version_label) Describe("label", *spec.version_label, &decoded.text);
  }
  for (const std::string& name : request.output_filter) Describe("filter", name, &decoded.text);
  std::map<std::string, std::string> tensors;
  for (auto& input : request.inputs) {
    std::string& tensor = tensors[input.name];
    tensor.clear();  // the last input of a name counts
    input.tensor.AppendRest(&tensor);
  }
  for (const auto& [name, tensor] : tensors) {
    Describe("input", name, &decoded.text);
    decoded.tensors.push_back(tensor);
  }
  return decoded;
}

// The fields of tensorflow_serving/apis/predict.proto and model.proto that the decoder reads. Its
// own Int64Value has the same bytes as google.protobuf's.
inline constexpr char kPredictProto[] = R"(
  name: 'predict_for_tests.proto' package: 'test' syntax: 'proto3'
  dependency: 'tensorflow/core/framework/tensor.proto'
  message_type { name: 'Int64Value'
    field { name: 'value' number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
  message_type { name: 'ModelSpec'
    field { name: 'name' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: 'version' number: 2 type: TYPE_MESSAGE type_name: '.test.Int64Value'
            label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: 'version_label' number: 4 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: 'signature_name' number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
    oneof_decl { name: 'version_choice' } }
  message_type { name: 'PredictRequest'
    field { name: 'model_spec' number: 1 type: TYPE_MESSAGE type_name: '.test.ModelSpec'
            label: LABEL_OPTIONAL }
    field { name: 'inputs' number: 2 type: TYPE_MESSAGE
            type_name: '.test.PredictRequest.InputsEntry' label: LABEL_REPEATED }
    field { name: 'output_filter' number: 3 type: TYPE_STRING label: LABEL_REPEATED }
    nested_type { name: 'InputsEntry' options { map_entry: true }
      field { name: 'key' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: 'value' number: 2 type: TYPE_MESSAGE type_name: '.tensorflow.TensorProto'
              label: LABEL_OPTIONAL } } })";

// Decodes with protobuf itself.
class ProtobufDecoder {
 public:
  ProtobufDecoder() {
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);  // it logs each name that is not UTF-8
    (void)tensorflow::TensorProto::descriptor();  // links its file into the generated pool
    google::protobuf::FileDescriptorProto file;
    if (!google::protobuf::TextFormat::ParseFromString(kPredictProto, &file)) std::abort();
    const auto* built = pool_.BuildFile(file);
    request_ = factory_.GetPrototype(built->FindMessageTypeByName("PredictRequest"));
  }

  Decoded Decode(const std::string& bytes) const {
    const std::unique_ptr<google::protobuf::Message> request(request_->New());
    Decoded decoded;
    decoded.is_ok = request->ParseFromString(bytes);
    if (!decoded.is_ok) return decoded;
    const auto& message = *request;
    const auto* reflection = message.GetReflection();
    if (reflection->HasField(message, Field(message, "model_spec"))) {
      DescribeSpec(reflection->GetMessage(message, Field(message, "model_spec")), &decoded.text);
    }
    const auto* filter = Field(message, "output_filter");
    for (int i = 0; i < reflection->FieldSize(message, filter); ++i) {
      Describe("filter", reflection->GetRepeatedString(message, filter, i), &decoded.text);
    }
    DescribeInputs(message, &decoded);
    return decoded;
  }

 private:
  using Message = google::protobuf::Message;

  static const google::protobuf::FieldDescriptor* Field(const Message& message, const char* name) {
    return message.GetDescriptor()->FindFieldByName(name);
  }
  static std::string String(const Message& message, const char* name) {
    return message.GetReflection()->GetString(message, Field(message, name));
  }

  static void DescribeSpec(const Message& spec, std::string* text) {
    const auto* reflection = spec.GetReflection();
    Describe("name", String(spec, "name"), text);
    Describe("signature", String(spec, "signature_name"), text);
    if (reflection->HasField(spec, Field(spec, "version"))) {
      const Message& version = reflection->GetMessage(spec, Field(spec, "version"));
      const int64_t value = version.GetReflection()->GetInt64(version, Field(version, "value"));
      Describe("version", std::to_string(value), text);
    }
    if (reflection->HasField(spec, Field(spec, "version_label"))) {
      Describe("label", String(spec, "version_label"), text);
    }
  }

  static void DescribeInputs(const Message& request, Decoded* decoded) {
    const auto* reflection = request.GetReflection();
    const auto* inputs = Field(request, "inputs");
    std::map<std::string, std::string> tensors;
    for (int i = 0; i < reflection->FieldSize(request, inputs); ++i) {
      const Message& entry = reflection->GetRepeatedMessage(request, inputs, i);
      const Message& tensor = entry.GetReflection()->GetMessage(entry, Field(entry, "value"));
      tensors[String(entry, "key")] = tensor.SerializeAsString();
    }
    for (const auto& [name, tensor] : tensors) {
      Describe("input", name, &decoded->text);
      decoded->tensors.push_back(tensor);
    }
  }

  google::protobuf::DescriptorPool pool_{google::protobuf::DescriptorPool::generated_pool()};
  google::protobuf::DynamicMessageFactory factory_;
  const Message* request_ = nullptr;
};

// Protobuf refuses a request for a tensor that does not parse; DecodePredictRequest leaves
// the tensors to DecodeTensor.
inline bool DoAllTensorsParse(const Decoded& decoded) {
  return std::all_of(decoded.tensors.begin(), decoded.tensors.end(), [](const std::string& bytes) {
    return tensorflow::TensorProto().ParseFromString(bytes);
  });
}

}  // namespace millpond::testing
