#include "native/rest/predict_body.h"

#include <optional>
#include <string>
#include <vector>

#include "native/inference/signature_request.h"
#include "native/rest/json_reader.h"
#include "native/rest/json_tensor_reader.h"

namespace millpond::rest {
namespace {

using base::Status;

// The unknown columns that an error names.
constexpr size_t kExtraCountMax = 4;

// Reads the values of all inputs of one signature.
class InputsReader {
 public:
  InputsReader(JsonReader* json, const tensor::Signature& signature, tensor::TensorList* inputs);

  bool ReadInstances();
  bool ReadInputs();
  Status Finish();

 private:
  bool ReadNamedRow(int64_t row);
  bool ReadNamedInputs();
  // Returns the input of that name, or null after it has failed the reader. It first tries the
  // position of the row before, because clients keep the order of their keys.
  TensorReader* Find(std::string_view name, size_t position);
  // The input that plain values are for: the only one, or the only one without a default. Null:
  // values come with their inputs' names.
  TensorReader* SingleInput() { return single_ < 0 ? nullptr : &readers_[single_]; }
  bool IsNamed();
  bool IsBase64();
  bool FailDuplicate(std::string_view name);
  // Returns the inputs that row `row` lacks, unless no row has them and they have a default.
  std::vector<std::string_view> MissingIn(int64_t row) const;
  bool FailMissing(int64_t row, const std::vector<std::string_view>& missing);
  bool FailMixed(std::string_view name, int64_t row);
  bool FailUnknown(std::string_view name);
  bool FailPlain(const char* key);
  std::string InputNames() const;

  JsonReader* const json_;
  const tensor::Signature& signature_;
  std::vector<TensorReader> readers_;  // for each input
  std::vector<size_t> order_;          // the inputs in the order of the first row
  tensor::TensorList* const inputs_;
  std::vector<bool> is_sent_;  // for each input
  int single_ = -1;
};

// Returns the only input, or the only one without a default; -1 if there is none.
int FindSingle(const std::vector<tensor::TensorSpec>& inputs) {
  if (inputs.size() == 1) return 0;
  int single = -1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].default_value != nullptr) continue;
    if (single >= 0) return -1;
    single = static_cast<int>(i);
  }
  return single;
}

InputsReader::InputsReader(JsonReader* json, const tensor::Signature& signature,
                           tensor::TensorList* inputs)
    : json_(json),
      signature_(signature),
      inputs_(inputs),
      is_sent_(signature.inputs.size(), false),
      single_(FindSingle(signature.inputs)) {
  inputs->Reset(signature.inputs.size());
  readers_.reserve(signature.inputs.size());
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    readers_.emplace_back(signature.inputs[i], i, inputs);
  }
}

// True if the value is an object with the inputs' names as keys. {"b64": "..."} is a string.
bool InputsReader::IsNamed() { return json_->Peek() == '{' && !(single_ >= 0 && IsBase64()); }

bool InputsReader::IsBase64() {
  const JsonReader::Mark mark = json_->Here();
  std::string_view key;
  bool is_base64 = json_->EnterObject() && json_->NextKey(&key) && key == "b64";
  is_base64 = is_base64 && json_->Peek() == '"' && json_->ReadString(&key) && !json_->NextKey(&key);
  json_->GoBack(mark);
  return is_base64;
}

bool InputsReader::ReadInstances() {
  if (json_->Peek() != '[') {
    return json_->Fail(base::InvalidArgument("'instances' is " + json_->Excerpt() +
                                             "; it takes a list with a value for each row"));
  }
  if (!json_->EnterArray()) return false;
  int64_t row = 0;
  bool is_named = false;
  for (; json_->NextElement(); ++row) {
    if (row == 0) is_named = IsNamed();
    if (!is_named && single_ < 0) return FailPlain("instances");
    if (!is_named) is_sent_[single_] = true;
    if (!(is_named ? ReadNamedRow(row) : SingleInput()->ReadRow(json_))) return false;
  }
  if (json_->ok() && row == 0) {
    return json_->Fail(
        base::InvalidArgument("'instances' is an empty list; send at least one row"));
  }
  return json_->ok();
}

bool InputsReader::ReadNamedRow(int64_t row) {
  if (json_->Peek() != '{') {
    return json_->Fail(
        base::InvalidArgument("instances[" + std::to_string(row) + "] is " + json_->Excerpt() +
                              ", but the rows before are objects with the inputs' names as keys"));
  }
  if (!json_->EnterObject()) return false;
  std::string_view name;
  size_t position = 0;
  for (; json_->NextKey(&name); ++position) {
    TensorReader* const input = Find(name, position);
    if (input == nullptr) return false;
    if (input->row_count() > row) return FailDuplicate(name);
    if (input->row_count() < row) return FailMixed(name, row);
    is_sent_[input - readers_.data()] = true;
    if (!input->ReadRow(json_)) return false;
  }
  if (!json_->ok()) return false;
  if (position == readers_.size()) return true;
  const std::vector<std::string_view> missing = MissingIn(row);
  return missing.empty() || FailMissing(row, missing);
}

std::vector<std::string_view> InputsReader::MissingIn(int64_t row) const {
  std::vector<std::string_view> missing;
  for (size_t i = 0; i < readers_.size(); ++i) {
    const bool has_default = signature_.inputs[i].default_value != nullptr && !is_sent_[i];
    if (readers_[i].row_count() <= row && !has_default) {
      missing.push_back(signature_.inputs[i].name);
    }
  }
  return missing;
}

TensorReader* InputsReader::Find(std::string_view name, size_t position) {
  if (position < order_.size() && signature_.inputs[order_[position]].name == name) {
    return &readers_[order_[position]];
  }
  const int found = tensor::FindTensorSpec(signature_.inputs, name);
  if (found < 0) {
    FailUnknown(name);
    return nullptr;
  }
  if (position == order_.size()) order_.push_back(found);
  return &readers_[found];
}

bool InputsReader::ReadInputs() {
  if (IsNamed()) return ReadNamedInputs();
  if (single_ < 0) return FailPlain("inputs");
  is_sent_[single_] = true;
  return SingleInput()->ReadWhole(json_);
}

// Passes over columns that the signature does not have, as TensorFlow Serving does. They are named
// if an input is missing, because its name may be misspelt.
bool InputsReader::ReadNamedInputs() {
  if (!json_->EnterObject()) return false;
  std::vector<std::string> extra;
  std::string_view name;
  size_t count = 0;
  while (json_->NextKey(&name)) {
    const int found = tensor::FindTensorSpec(signature_.inputs, name);
    if (found < 0) {
      if (extra.size() < kExtraCountMax) extra.emplace_back(name);
      if (!json_->SkipValue()) return false;
      continue;
    }
    std::vector<bool>::reference is_sent = is_sent_[found];
    if (is_sent) return FailDuplicate(name);
    is_sent = true;
    count += 1;
    if (!readers_[found].ReadWhole(json_)) return false;
  }
  if (!json_->ok() || count == readers_.size()) return json_->ok();
  std::vector<std::string_view> missing;
  for (size_t i = 0; i < is_sent_.size(); ++i) {
    const tensor::TensorSpec& spec = signature_.inputs[i];
    if (!is_sent_[i] && spec.default_value == nullptr) missing.push_back(spec.name);
  }
  if (missing.empty()) return true;
  return json_->Fail(inference::InputsDiffer(signature_, {extra.begin(), extra.end()}, missing));
}

bool InputsReader::FailDuplicate(std::string_view name) {
  return json_->Fail(base::InvalidArgument("duplicate input '" + std::string(name) +
                                           "' in one object; send it once"));
}

bool InputsReader::FailMixed(std::string_view name, int64_t row) {
  return json_->Fail(base::InvalidArgument(
      "instances[" + std::to_string(row) + "] has the input '" + std::string(name) +
      "', and a row before does not: send it in all rows, or in none for its default"));
}

bool InputsReader::FailMissing(int64_t row, const std::vector<std::string_view>& missing) {
  const Status differ = inference::InputsDiffer(signature_, {}, missing);
  return json_->Fail(
      {differ.code(), "instances[" + std::to_string(row) + "]: " + differ.message()});
}

// The inputs after it are not read, so the message cannot list missing inputs yet.
bool InputsReader::FailUnknown(std::string_view name) {
  return json_->Fail(base::InvalidArgument("inputs do not match signature '" + signature_.name +
                                           "'. Sent extra: " + inference::ListNames({name}) +
                                           ". The signature has the inputs " + InputNames() + "."));
}

bool InputsReader::FailPlain(const char* key) {
  return json_->Fail(base::InvalidArgument(
      "'" + std::string(key) + "' has plain values, but signature '" + signature_.name +
      "' has the inputs " + InputNames() + ": send objects with these keys"));
}

std::string InputsReader::InputNames() const {
  std::vector<std::string_view> names;
  for (const tensor::TensorSpec& input : signature_.inputs) names.push_back(input.name);
  return inference::ListNames(names);
}

Status InputsReader::Finish() {
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (!is_sent_[i] && inference::UseDefault(signature_, i, inputs_)) continue;
    const Status finished = readers_[i].Finish();
    if (!finished.ok()) {
      return {finished.code(), finished.message() + "; signature '" + signature_.name + "'"};
    }
  }
  return {};
}

// Reads the object around the values.
class BodyReader {
 public:
  BodyReader(const servable::Servable& servable, std::string_view body, PredictBody* read)
      : servable_(servable), json_(body), read_(read) {}

  Status Read();

 private:
  bool ReadKeys();
  bool ReadSignatureName();
  bool NoteValues(BodyFormat format);
  Status ReadValues(std::string_view signature_name);

  const servable::Servable& servable_;
  JsonReader json_;
  PredictBody* const read_;
  std::optional<std::string> signature_name_;
  std::optional<JsonReader::Mark> values_;  // the start of the values
  std::optional<std::string> tried_name_;   // the signature for which they were read
  Status values_status_;
};

Status BodyReader::Read() {
  if (json_.Peek() != '{') {
    json_.FailSyntax("an object with \"instances\" or \"inputs\"");
    return json_.error();
  }
  if (!ReadKeys()) return json_.error();
  if (!json_.AtEnd()) {
    json_.FailSyntax("nothing after the object");
    return json_.error();
  }
  if (!values_) return base::InvalidArgument("Missing 'inputs' or 'instances' key");
  const std::string name = signature_name_.value_or("");
  return name == tried_name_ ? values_status_ : ReadValues(name);
}

bool BodyReader::ReadKeys() {
  std::string_view key;
  if (!json_.EnterObject()) return false;
  while (json_.NextKey(&key)) {
    const bool is_instances = key == "instances";
    if (is_instances || key == "inputs") {
      if (!NoteValues(is_instances ? BodyFormat::kRow : BodyFormat::kColumnar)) return false;
    } else if (key == "signature_name") {
      if (!ReadSignatureName()) return false;
    } else if (!json_.SkipValue()) {
      return false;
    }
  }
  return json_.ok();
}

bool BodyReader::ReadSignatureName() {
  std::string_view name;
  if (signature_name_) {
    return json_.Fail(base::InvalidArgument("duplicate key 'signature_name'; send it once"));
  }
  if (json_.Peek() != '"') {
    return json_.Fail(
        base::InvalidArgument("'signature_name' is " + json_.Excerpt() + "; it takes a string"));
  }
  if (!json_.ReadString(&name)) return false;
  signature_name_ = std::string(name == tensor::kDefaultSignatureName ? "" : name);
  return true;
}

// Reads the values for the signature that is named so far. An error in them is kept until the end
// of the body, because a later signature_name may select another signature.
bool BodyReader::NoteValues(BodyFormat format) {
  if (values_) {
    return json_.Fail(base::InvalidArgument(
        "the body has 'instances' and 'inputs', or one of them twice; send one of them, once"));
  }
  json_.Peek();
  values_ = json_.Here();
  read_->format = format;
  tried_name_ = signature_name_.value_or("");
  values_status_ = ReadValues(*tried_name_);
  if (values_status_.ok()) return true;
  if (signature_name_) return json_.Fail(values_status_);
  json_.GoBack(*values_);
  return json_.SkipValue();
}

Status BodyReader::ReadValues(std::string_view signature_name) {
  const auto signature = inference::FindSignature(servable_, signature_name);
  if (!signature.ok()) return signature.status();
  read_->signature = signature.value();
  json_.GoBack(*values_);
  InputsReader inputs(&json_, *signature.value(), &read_->inputs);
  const bool is_read =
      read_->format == BodyFormat::kRow ? inputs.ReadInstances() : inputs.ReadInputs();
  return is_read ? inputs.Finish() : json_.error();
}

}  // namespace

Status ReadPredictBody(const servable::Servable& servable, std::string_view body,
                       PredictBody* read) {
  return BodyReader(servable, body, read).Read();
}

}  // namespace millpond::rest
