#include "native/rest/infer_body.h"

#include <algorithm>
#include <array>
#include <utility>

#include "native/base/limits.h"
#include "native/base/wire_reader.h"
#include "native/inference/raw_elements.h"
#include "native/rest/json_number.h"
#include "native/rest/json_tensor_reader.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {
namespace {

using base::Status;
using inference::InferParameter;

constexpr std::string_view kBinarySize = "binary_data_size";
constexpr std::string_view kBinaryData = "binary_data";
constexpr std::string_view kBinaryOutput = "binary_data_output";

const InferParameter* FindParameter(const std::vector<InferParameter>& parameters,
                                    std::string_view name) {
  for (const InferParameter& parameter : parameters) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

// Reads one body from front to back.
class BodyReader {
 public:
  BodyReader(JsonReader* json, std::string_view binary, InferBody* body)
      : json_(*json), binary_(binary), body_(*body) {}

  Status Read();

 private:
  bool ReadField(std::string_view key);
  bool ReadInputs();
  bool ReadInput();
  bool ReadInputField(std::string_view key, inference::InferRequest::Input* input,
                      InferBody::Data* data, std::vector<InferParameter>* parameters);
  bool ReadOutputs();
  bool ReadOutput();
  bool ReadShape(std::vector<int64_t>* dims);
  bool ReadText(std::string* text);
  bool ReadParameters(std::vector<InferParameter>* parameters);
  bool ReadParameter(InferParameter* parameter);
  bool TakeBinary(const inference::InferRequest::Input& input,
                  const std::vector<InferParameter>& parameters, InferBody::Data* data);
  bool CheckNameCount();
  bool NoteKey(std::string_view key, unsigned* seen);
  bool Fail(std::string message) { return json_.Fail(base::InvalidArgument(std::move(message))); }

  JsonReader& json_;
  std::string_view binary_;  // the bytes that no input has taken yet
  InferBody& body_;
  size_t name_count_ = 0;
};

// Limits the names of a request, because a few bytes of JSON become a hundred bytes in memory.
bool BodyReader::CheckNameCount() {
  if (++name_count_ <= base::kMaxNamesPerRequest) return true;
  return Fail("the request has more than " + std::to_string(base::kMaxNamesPerRequest) +
              " inputs, outputs and parameters; no signature has that many");
}

// Refuses a repeated key of an object, because one of the two values would be lost. It checks the
// keys that are read. `seen` belongs to the object and has one bit for each key.
bool BodyReader::NoteKey(std::string_view key, unsigned* seen) {
  static constexpr std::array<std::string_view, 8> kKeys = {
      "id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data"};
  const auto found = std::find(kKeys.begin(), kKeys.end(), key);
  if (found == kKeys.end()) return true;
  const unsigned bit = 1U << static_cast<unsigned>(found - kKeys.begin());
  if ((*seen & bit) != 0) {
    return Fail("duplicate key '" + std::string(key) + "' in one object; send it once");
  }
  *seen |= bit;
  return true;
}

bool BodyReader::ReadText(std::string* text) {
  std::string_view value;
  if (!json_.ReadString(&value)) return false;
  *text = value;
  return true;
}

bool BodyReader::ReadParameter(InferParameter* parameter) {
  const char next = json_.Peek();
  if (next == '"') return ReadText(&parameter->text);
  if (json_.Accept("true")) {
    parameter->number = 1;
    return true;
  }
  if (next == '-' || (next >= '0' && next <= '9')) {
    if (ReadFloat(&json_, &parameter->number) == ReadResult::kRead) return true;
    return Fail("parameter '" + parameter->name + "' is " + json_.Excerpt());
  }
  return json_.SkipValue();
}

bool BodyReader::ReadParameters(std::vector<InferParameter>* parameters) {
  if (!json_.EnterObject()) return false;
  std::string_view key;
  while (json_.NextKey(&key)) {
    InferParameter& parameter = parameters->emplace_back();
    parameter.name = key;
    if (!CheckNameCount() || !ReadParameter(&parameter)) return false;
  }
  return json_.ok();
}

bool BodyReader::ReadShape(std::vector<int64_t>* dims) {
  if (!json_.EnterArray()) return false;
  while (json_.NextElement()) {
    int64_t size = 0;
    json_.Peek();
    if (ReadInteger(&json_, &size) != ReadResult::kRead) {
      return Fail("a shape has " + json_.Excerpt() + "; it takes a list of sizes");
    }
    // Keeps at most one more size than TensorFlow takes, which is enough to refuse the shape.
    if (dims->size() <= base::kMaxTensorRank) dims->push_back(size);
  }
  return json_.ok();
}

bool BodyReader::ReadInputField(std::string_view key, inference::InferRequest::Input* input,
                                InferBody::Data* data, std::vector<InferParameter>* parameters) {
  if (key == "name") return ReadText(&input->name);
  if (key == "datatype") return ReadText(&input->datatype);
  if (key == "shape") return ReadShape(&input->dims);
  if (key == "parameters") return ReadParameters(parameters);
  if (key == "data") {
    json_.Peek();
    data->json = json_.Here();
  }
  return json_.SkipValue();
}

bool BodyReader::TakeBinary(const inference::InferRequest::Input& input,
                            const std::vector<InferParameter>& parameters, InferBody::Data* data) {
  const InferParameter* const size = FindParameter(parameters, kBinarySize);
  if (size == nullptr) {
    return data->json || !parameters.empty() ||
           Fail("input '" + input.name + "' has neither data nor the parameter binary_data_size");
  }
  if (data->json) {
    return Fail("input '" + input.name + "' has data and binary_data_size; send one of them");
  }
  const auto left = static_cast<double>(binary_.size());
  if (!(size->number >= 0 && size->number <= left) || !size->text.empty()) {
    return Fail("input '" + input.name + "': " + std::to_string(binary_.size()) +
                " bytes follow the JSON for it, which are not its binary_data_size; set the "
                "header Inference-Header-Content-Length to the JSON's bytes");
  }
  const auto bytes = static_cast<size_t>(size->number);
  data->binary = binary_.substr(0, bytes);
  binary_.remove_prefix(bytes);
  return true;
}

bool BodyReader::ReadInput() {
  inference::InferRequest::Input& input = body_.request.inputs.emplace_back();
  InferBody::Data& data = body_.data.emplace_back();
  std::vector<InferParameter> parameters;
  std::string_view key;
  unsigned seen = 0;
  if (!CheckNameCount() || !json_.EnterObject()) return false;
  while (json_.NextKey(&key)) {
    if (!NoteKey(key, &seen)) return false;
    if (!ReadInputField(key, &input, &data, &parameters)) return false;
  }
  if (!json_.ok() || !TakeBinary(input, parameters, &data)) return false;
  for (InferParameter& parameter : parameters) {
    body_.request.tensor_parameters.push_back(std::move(parameter));
  }
  return true;
}

bool BodyReader::ReadInputs() {
  if (!json_.EnterArray()) return false;
  while (json_.NextElement()) {
    if (!ReadInput()) return false;
  }
  return json_.ok();
}

bool BodyReader::ReadOutput() {
  std::string& name = body_.request.outputs.emplace_back();
  std::vector<InferParameter> parameters;
  std::string_view key;
  unsigned seen = 0;
  if (!CheckNameCount() || !json_.EnterObject()) return false;
  while (json_.NextKey(&key)) {
    if (!NoteKey(key, &seen)) return false;
    const bool is_read = key == "name"         ? ReadText(&name)
                         : key == "parameters" ? ReadParameters(&parameters)
                                               : json_.SkipValue();
    if (!is_read) return false;
  }
  if (!json_.ok()) return false;
  const InferParameter* const binary = FindParameter(parameters, kBinaryData);
  body_.is_binary.push_back(binary == nullptr ? std::nullopt
                                              : std::optional<bool>(binary->IsSet()));
  for (InferParameter& parameter : parameters) {
    body_.request.tensor_parameters.push_back(std::move(parameter));
  }
  return true;
}

bool BodyReader::ReadOutputs() {
  if (!json_.EnterArray()) return false;
  while (json_.NextElement()) {
    if (!ReadOutput()) return false;
  }
  return json_.ok();
}

bool BodyReader::ReadField(std::string_view key) {
  if (key == "id") return ReadText(&body_.request.id);
  if (key == "parameters") return ReadParameters(&body_.request.parameters);
  if (key == "inputs") return ReadInputs();
  if (key == "outputs") return ReadOutputs();
  return json_.SkipValue();
}

Status BodyReader::Read() {
  std::string_view key;
  unsigned seen = 0;
  if (json_.EnterObject()) {
    while (json_.NextKey(&key)) {
      if (!NoteKey(key, &seen) || !ReadField(key)) break;
    }
  }
  if (json_.ok() && !json_.AtEnd()) json_.FailSyntax("the end of the JSON");
  if (!json_.ok()) return json_.error();
  if (!binary_.empty()) {
    return base::InvalidArgument(std::to_string(binary_.size()) +
                                 " bytes after the JSON do not belong to an input; set the "
                                 "parameter binary_data_size of their input");
  }
  const InferParameter* const binary = FindParameter(body_.request.parameters, kBinaryOutput);
  body_.is_binary_by_default = binary != nullptr && binary->IsSet();
  return {};
}

// Removes the input's name from the message, because Infer adds the name.
Status WithoutName(const Status& status, std::string_view name) {
  const std::string prefix = "input '" + std::string(name) + "'";
  std::string message = status.message();
  if (message.rfind(prefix, 0) == 0) {
    message.erase(0, message.find_first_not_of(" :", prefix.size()));
  }
  return {status.code(), std::move(message)};
}

// Reads the elements from JSON lists. The lists may be nested in any way, because the shape is
// given beside them.
Status ReadJsonElements(JsonReader* json, std::string_view name, int dtype,
                        const std::vector<int64_t>& dims, int64_t element_count, size_t index,
                        tensor::TensorList* tensors) {
  tensor::TensorSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  TensorReader reader(spec, index, tensors);
  if (!reader.ReadWhole(json)) return WithoutName(json->error(), name);
  const Status finished = reader.Finish();
  if (!finished.ok()) return WithoutName(finished, name);
  const int64_t count = tensor::ViewTensor(*tensors, index).element_count;
  if (count != element_count) {
    return base::InvalidArgument("data holds " + std::to_string(count) +
                                 " elements, the shape has " + std::to_string(element_count));
  }
  return tensor::ShapeTensor(dims, index, tensors);
}

}  // namespace

Status ReadInferBody(JsonReader* json, std::string_view binary, InferBody* body) {
  return BodyReader(json, binary, body).Read();
}

Status BodyElements::Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                          int64_t element_count, size_t index, tensor::TensorList* tensors) const {
  const InferBody::Data& data = body_.data[input];
  if (data.binary) {
    const base::WireReader raw(&*data.binary, 1);
    return inference::ReadRawElements(raw, dtype, dims, element_count, index, tensors);
  }
  if (!data.json) return base::InvalidArgument("has no data");
  json_->GoBack(*data.json);
  return ReadJsonElements(json_, body_.request.inputs[input].name, dtype, dims, element_count,
                          index, tensors);
}

}  // namespace millpond::rest
