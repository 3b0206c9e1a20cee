#include "native/rest/tf_example_body.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/base/wire_writer.h"
#include "native/rest/base64.h"
#include "native/rest/json_number.h"
#include "native/rest/json_reader.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {
namespace {

using base::DelimitedBytes;
using base::Status;
using base::WireWriter;

// Fields of tensorflow/core/example/example.proto and feature.proto.
constexpr uint32_t kExampleFeatures = 1;
constexpr uint32_t kFeaturesEntry = 1;
constexpr uint32_t kEntryKey = 1;
constexpr uint32_t kEntryValue = 2;
constexpr uint32_t kListValue = 1;

// The times that the bytes of a body are in memory while it is read, beside the tensor: as values,
// as features, which are twice as long as their JSON, and as examples.
constexpr int64_t kBodyCopies = 5;

// The kind of a feature's values. The number is that of Feature's field.
enum class FeatureKind : uint32_t { kNone = 0, kBytes = 1, kFloat = 2, kInt64 = 3 };

const char* KindName(FeatureKind kind) {
  if (kind == FeatureKind::kBytes) return "bytes";
  return kind == FeatureKind::kFloat ? "float" : "int64";
}

// The bytes of a context that take as long to copy as a step of a base::DecodeLook.
constexpr int64_t kBytesPerStep = 16;

// Makes `to` longer by `bytes`, and returns a writer for them.
WireWriter Extend(size_t bytes, std::string* to) {
  to->resize(to->size() + bytes);
  return WireWriter(to->data() + to->size() - bytes);
}

// Reads features of JSON and appends them to an Example's bytes.
class FeatureReader {
 public:
  explicit FeatureReader(JsonReader* json) : json_(json) {}

  // Reads the object of one example, and appends its Example to `*examples`.
  bool ReadExample(std::string* examples);

 private:
  bool ReadFeature();
  bool ReadValue();
  bool ReadText();
  bool ReadBase64();
  bool ReadNumber();
  bool SetKind(FeatureKind kind);
  bool PutInt64(int64_t value);
  bool FailValue(const std::string& why);
  void EndFeature();
  bool NoteName();
  bool NoteStep();
  bool CheckNamesDiffer();

  JsonReader* const json_;
  base::DecodeLook look_;
  size_t charged_names_ = 0;        // for so many names
  std::string features_;            // the features of the example
  std::vector<std::string> names_;  // the names of the features
  std::string name_;                // the name of the current feature
  FeatureKind kind_ = FeatureKind::kNone;
  std::string values_;  // the values of the current feature, as its list has them
};

bool FeatureReader::ReadExample(std::string* examples) {
  if (json_->Peek() != '{') {
    return json_->Fail(base::InvalidArgument("an example is " + json_->Excerpt() +
                                             "; it has to be an object of features"));
  }
  features_.clear();
  names_.clear();
  std::string_view name;
  if (!json_->EnterObject()) return false;
  while (json_->NextKey(&name)) {
    name_ = name;
    if (!ReadFeature()) return false;
    EndFeature();
    if (!NoteName() || !NoteStep()) return false;
  }
  if (!json_->ok() || !CheckNamesDiffer()) return false;
  WireWriter writer = Extend(DelimitedBytes(kExampleFeatures, features_.size()), examples);
  writer.BytesField(kExampleFeatures, features_);
  return true;
}

// Keeps the name until the end of the example. A name takes more memory than its feature.
bool FeatureReader::NoteName() {
  if (names_.size() == charged_names_) {
    if (!base::ShareScope::Add(sizeof(std::string))) {
      return json_->Fail(base::ShareScope::NoMemoryFor("the features of an example"));
    }
    ++charged_names_;
  }
  names_.push_back(std::move(name_));
  return true;
}

bool FeatureReader::NoteStep() { return look_.Count() || json_->Fail(look_.status()); }

// Refuses a repeated feature. Protobuf would silently keep the last of the two.
bool FeatureReader::CheckNamesDiffer() {
  std::sort(names_.begin(), names_.end());
  const auto twice = std::adjacent_find(names_.begin(), names_.end());
  if (twice == names_.end()) return true;
  return json_->Fail(
      base::InvalidArgument("Feature: " + *twice + " appears twice in one example; send it once"));
}

bool FeatureReader::ReadFeature() {
  kind_ = FeatureKind::kNone;
  values_.clear();
  if (json_->Peek() != '[') return ReadValue();
  if (!json_->EnterArray()) return false;
  while (json_->NextElement()) {
    if (!ReadValue() || !NoteStep()) return false;
  }
  return json_->ok();
}

bool FeatureReader::ReadValue() {
  switch (json_->Peek()) {
    case '"':
      return ReadText();
    case '{':
      return ReadBase64();
    case '[':
      return FailValue("a list in a list");
    default:
      if (json_->Accept("true")) return PutInt64(1);
      if (json_->Accept("false")) return PutInt64(0);
      return ReadNumber();
  }
}

bool FeatureReader::ReadText() {
  std::string_view text;
  if (!SetKind(FeatureKind::kBytes) || !json_->ReadString(&text)) return false;
  Extend(DelimitedBytes(kListValue, text.size()), &values_).BytesField(kListValue, text);
  return true;
}

bool FeatureReader::ReadBase64() {
  std::string_view text;
  if (!SetKind(FeatureKind::kBytes) || !json_->EnterObject() || !json_->NextKey(&text)) {
    return json_->ok() && FailValue("an object without \"b64\"");
  }
  if (text != "b64") return FailValue("an object with another key than \"b64\"");
  if (!json_->ReadString(&text)) return false;
  std::string plain(PlainBytes(text), '\0');
  if (!DecodeBase64(text, plain.data())) return FailValue("invalid base64");
  Extend(DelimitedBytes(kListValue, plain.size()), &values_).BytesField(kListValue, plain);
  if (json_->NextKey(&text)) return FailValue("an object with more keys than \"b64\"");
  return json_->ok();
}

bool FeatureReader::ReadNumber() {
  int64_t integer = 0;
  float number = 0;
  ReadResult result = ReadInteger(json_, &integer);
  if (result == ReadResult::kRead) return PutInt64(integer);
  if (result == ReadResult::kOutOfRange) {
    return FailValue(json_->Excerpt() + ", which is out of the range of int64");
  }
  result = ReadFloat(json_, &number);
  if (result == ReadResult::kOutOfRange) {
    return FailValue(json_->Excerpt() + ", which is out of the range of float32");
  }
  if (result != ReadResult::kRead) {
    return FailValue(json_->Excerpt() + ", which is not a number, string or boolean");
  }
  if (!SetKind(FeatureKind::kFloat)) return false;
  Extend(sizeof number, &values_).Bytes(&number, sizeof number);
  return true;
}

bool FeatureReader::SetKind(FeatureKind kind) {
  if (kind_ == FeatureKind::kNone) kind_ = kind;
  if (kind_ == kind) return true;
  return json_->Fail(base::InvalidArgument("Unexpected element type in feature: " + name_ +
                                           " expecting type: " + KindName(kind_) + ", got " +
                                           KindName(kind) +
                                           "; send values of one kind (1.0 "
                                           "is a float, 1 an int64)"));
}

bool FeatureReader::PutInt64(int64_t value) {
  if (!SetKind(FeatureKind::kInt64)) return false;
  const auto varint = static_cast<uint64_t>(value);
  Extend(base::VarintBytes(varint), &values_).Varint(varint);
  return true;
}

bool FeatureReader::FailValue(const std::string& why) {
  return json_->Fail(base::InvalidArgument("Feature: " + name_ + " has " + why));
}

// Appends the feature to the example. Numbers are packed, so their list is one field. Strings are
// separate fields already.
void FeatureReader::EndFeature() {
  const bool is_packed = kind_ == FeatureKind::kFloat || kind_ == FeatureKind::kInt64;
  const size_t list_bytes = is_packed ? DelimitedBytes(kListValue, values_.size()) : values_.size();
  const auto kind = static_cast<uint32_t>(kind_);
  const size_t feature_bytes = kind_ == FeatureKind::kNone ? 0 : DelimitedBytes(kind, list_bytes);
  const size_t entry_bytes =
      DelimitedBytes(kEntryKey, name_.size()) + DelimitedBytes(kEntryValue, feature_bytes);
  WireWriter writer = Extend(DelimitedBytes(kFeaturesEntry, entry_bytes), &features_);
  writer.Delimited(kFeaturesEntry, entry_bytes);
  writer.BytesField(kEntryKey, name_);
  writer.Delimited(kEntryValue, feature_bytes);
  if (kind_ == FeatureKind::kNone) return;
  writer.Delimited(kind, list_bytes);
  if (is_packed) writer.Delimited(kListValue, values_.size());
  writer.Bytes(values_.data(), values_.size());
}

// Reads the object around the examples.
class ExampleBodyReader {
 public:
  explicit ExampleBodyReader(std::string_view body) : json_(body), features_(&json_) {}

  Status Read(ExampleBody* read);

 private:
  bool ReadKeys(ExampleBody* read);
  bool ReadSignatureName(std::string* signature_name);
  bool ReadContext();
  bool ReadExamples();
  bool FailTwice(const char* key);
  Status MakeTensor(tensor::TensorList* examples) const;

  JsonReader json_;
  FeatureReader features_;
  bool has_signature_name_ = false;
  std::optional<std::string> context_;
  std::optional<std::string> examples_;  // the Examples, one after the other
  std::vector<size_t> ends_;             // the end of each Example in examples_
};

Status ExampleBodyReader::Read(ExampleBody* read) {
  if (!json_.EnterObject() || !ReadKeys(read)) return json_.error();
  if (!json_.AtEnd()) {
    json_.FailSyntax("nothing after the object");
    return json_.error();
  }
  if (!examples_) return base::InvalidArgument("Missing 'examples' key");
  return MakeTensor(&read->examples);
}

bool ExampleBodyReader::ReadKeys(ExampleBody* read) {
  std::string_view key;
  while (json_.NextKey(&key)) {
    bool is_read = false;
    if (key == "signature_name") {
      is_read = ReadSignatureName(&read->signature_name);
    } else if (key == "context") {
      is_read = ReadContext();
    } else if (key == "examples") {
      is_read = ReadExamples();
    } else {
      is_read = json_.SkipValue();
    }
    if (!is_read) return false;
  }
  return json_.ok();
}

bool ExampleBodyReader::ReadSignatureName(std::string* signature_name) {
  if (has_signature_name_) return FailTwice("signature_name");
  has_signature_name_ = true;
  if (json_.Peek() != '"') {
    return json_.Fail(
        base::InvalidArgument("'signature_name' is " + json_.Excerpt() + "; it takes a string"));
  }
  std::string_view name;
  if (!json_.ReadString(&name)) return false;
  *signature_name = name;
  return true;
}

bool ExampleBodyReader::ReadContext() {
  if (context_) return FailTwice("context");
  return features_.ReadExample(&context_.emplace());
}

bool ExampleBodyReader::ReadExamples() {
  if (examples_) return FailTwice("examples");
  if (json_.Peek() != '[') {
    return json_.Fail(
        base::InvalidArgument("'examples' is " + json_.Excerpt() + "; it takes a list of objects"));
  }
  examples_.emplace();
  if (!json_.EnterArray()) return false;
  while (json_.NextElement()) {
    if (!features_.ReadExample(&*examples_)) return false;
    if (!base::ShareScope::Add(sizeof(size_t))) {
      return json_.Fail(base::ShareScope::NoMemoryFor("the examples of a body"));
    }
    ends_.push_back(examples_->size());
  }
  if (json_.ok() && ends_.empty()) {
    return json_.Fail(
        base::InvalidArgument("'examples' is an empty list; send at least one example"));
  }
  return json_.ok();
}

bool ExampleBodyReader::FailTwice(const char* key) {
  return json_.Fail(
      base::InvalidArgument("duplicate key '" + std::string(key) + "'; send it once"));
}

// Makes the tensor of the examples, each after the bytes of the context. The bytes of two Examples,
// one after the other, are the two merged. If both have a feature, the latter counts, which is the
// example's.
Status ExampleBodyReader::MakeTensor(tensor::TensorList* examples) const {
  const std::string context = context_.value_or("");
  const size_t count = ends_.size();
  const auto max_bytes = static_cast<size_t>(base::kMaxTensorBytes);
  if (examples_->size() > max_bytes || context.size() > (max_bytes - examples_->size()) / count) {
    return {base::Code::kResourceExhausted,
            std::to_string(count) + " examples, each with a context of " +
                std::to_string(context.size()) + " bytes, take more than " +
                std::to_string(max_bytes) + "; send fewer at a time"};
  }
  examples->Reset(1);
  MILLPOND_RETURN_IF_ERROR(
      tensor::MakeTensor(tensor::dtype::kString, {static_cast<int64_t>(count)}, 0, examples));
  base::DecodeLook look;
  size_t begin = 0;
  for (size_t i = 0; i < count; begin = ends_[i++]) {
    const std::string_view example = std::string_view(*examples_).substr(begin, ends_[i] - begin);
    const auto to =
        tensor::ResizeString(0, static_cast<int64_t>(i), context.size() + example.size(), examples);
    if (!to.ok()) return to.status();
    context.copy(to.value(), context.size());
    example.copy(to.value() + context.size(), example.size());
    if (!look.Count(1 + static_cast<int64_t>(context.size()) / kBytesPerStep)) {
      return look.status();
    }
  }
  return {};
}

}  // namespace

Status ReadExampleBody(std::string_view body, ExampleBody* read) {
  if (!base::ShareScope::Add(kBodyCopies * static_cast<int64_t>(body.size()))) {
    return base::ShareScope::NoMemoryFor("the examples of a body of " +
                                         std::to_string(body.size()) + " bytes");
  }
  return ExampleBodyReader(body).Read(read);
}

}  // namespace millpond::rest
