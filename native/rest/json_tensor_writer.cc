#include "native/rest/json_tensor_writer.h"

#include <cstdint>
#include <string_view>
#include <vector>

#include "native/base/wire_reader.h"
#include "native/rest/json_number_writer.h"
#include "native/rest/json_writer.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {
namespace {

using base::Status;
namespace dtype = tensor::dtype;

constexpr size_t kExpectedOverheadBytes = 256;

// Returns the least number of bytes of a tensor of `dims` as text, or SIZE_MAX if a size_t cannot
// hold it. An element takes one character or more. Elements and rows are separated by ", ".
size_t MinTextBytes(const std::vector<int64_t>& dims) {
  constexpr size_t kBrackets = 2;
  constexpr size_t kComma = 2;
  size_t bytes = 1;
  for (size_t depth = dims.size(); depth-- > 0;) {
    const auto count = static_cast<size_t>(dims[depth]);
    size_t row_bytes = 0;
    if (__builtin_add_overflow(bytes, kComma, &row_bytes)) return SIZE_MAX;
    if (__builtin_mul_overflow(count, row_bytes, &bytes)) return SIZE_MAX;
    if (count > 0) bytes -= kComma;
    if (__builtin_add_overflow(bytes, kBrackets, &bytes)) return SIZE_MAX;
  }
  return bytes;
}

bool EndsInBytes(std::string_view name) {
  constexpr std::string_view kSuffix = "_bytes";
  return name.size() >= kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix;
}

// Writes one output, whole or a row at a time. Borrows all arguments.
class TensorWriter {
 public:
  TensorWriter(const tensor::TensorSpec& spec, size_t index, const tensor::TensorList& tensors)
      : spec_(spec),
        index_(index),
        tensors_(tensors),
        view_(tensor::ViewTensor(tensors, index)),
        is_binary_(EndsInBytes(spec.name)) {}

  const tensor::TensorSpec& spec() const { return spec_; }
  bool IsScalar() const { return view_.dims.empty(); }
  int64_t row_count() const { return view_.dims[0]; }
  int64_t element_count() const { return view_.element_count; }
  size_t min_text_bytes() const { return MinTextBytes(view_.dims); }
  Status Check() const;

  void WriteWhole(JsonWriter* json) const { Write(0, 0, view_.element_count, json); }
  void WriteRow(int64_t row, JsonWriter* json) const {
    const int64_t elements = view_.element_count / row_count();
    Write(1, row * elements, elements, json);
  }

 private:
  // Writes `count` elements, starting at `first`, as lists of the dimensions from `depth` on.
  void Write(size_t depth, int64_t first, int64_t count, JsonWriter* json) const;
  void WriteElements(int64_t first, int64_t count, JsonWriter* json) const;
  void WriteStrings(int64_t first, int64_t count, JsonWriter* json) const;

  const tensor::TensorSpec& spec_;
  const size_t index_;
  const tensor::TensorList& tensors_;
  const tensor::TensorView view_;
  const bool is_binary_;
};

Status TensorWriter::Check() const {
  if (view_.dtype == dtype::kString || tensor::ElementBytes(view_.dtype) > 0) return {};
  return {base::Code::kUnimplemented, "output '" + spec_.name + "' is " +
                                          tensor::DtypeName(view_.dtype) +
                                          ", for which JSON has no values; use gRPC"};
}

void TensorWriter::Write(size_t depth, int64_t first, int64_t count, JsonWriter* json) const {
  if (depth == view_.dims.size()) return WriteElements(first, count, json);
  json->Raw('[');
  if (depth + 1 == view_.dims.size()) {
    WriteElements(first, count, json);
  } else {
    const int64_t size = view_.dims[depth];
    for (int64_t i = 0; i < size && json->ok(); ++i) {
      if (i > 0) json->Raw(", ");
      Write(depth + 1, first + i * (count / size), count / size, json);
    }
  }
  json->Raw(']');
}

void TensorWriter::WriteElements(int64_t first, int64_t count, JsonWriter* json) const {
  if (view_.dtype == dtype::kString) return WriteStrings(first, count, json);
  WriteNumbers(view_, first, count, json);
}

void TensorWriter::WriteStrings(int64_t first, int64_t count, JsonWriter* json) const {
  for (int64_t i = first; i < first + count && json->ok(); ++i) {
    if (i > first) json->Raw(", ");
    const std::string_view value = tensor::StringAt(tensors_, index_, i);
    if (is_binary_ || !base::IsValidUtf8(value)) {
      json->Base64(value);
    } else {
      json->String(value);
    }
  }
}

using Outputs = std::vector<TensorWriter>;

Status CheckRows(const Outputs& outputs) {
  for (const TensorWriter& output : outputs) {
    const std::string name = "output '" + output.spec().name + "'";
    if (output.IsScalar()) {
      return base::InvalidArgument(name +
                                   " is a scalar, which has no rows; send 'inputs' "
                                   "instead of 'instances' to get whole tensors");
    }
    if (output.row_count() != outputs[0].row_count()) {
      return base::InvalidArgument(
          name + " has inconsistent batch size: " + std::to_string(output.row_count()) +
          ", expecting: " + std::to_string(outputs[0].row_count()) +
          "; send 'inputs' instead of 'instances' to get whole tensors");
    }
  }
  return {};
}

void WriteKey(const TensorWriter& output, JsonWriter* json) {
  json->String(output.spec().name);
  json->Raw(": ");
}

void WriteRows(const Outputs& outputs, JsonWriter* json) {
  const int64_t row_count = outputs.empty() ? 0 : outputs[0].row_count();
  json->Raw("{\"predictions\": [");
  for (int64_t row = 0; row < row_count && json->ok(); ++row) {
    if (row > 0) json->Raw(", ");
    if (outputs.size() == 1) {
      outputs[0].WriteRow(row, json);
      continue;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      json->Raw(i == 0 ? "{" : ", ");
      WriteKey(outputs[i], json);
      outputs[i].WriteRow(row, json);
    }
    json->Raw('}');
  }
  json->Raw("]}");
}

void WriteColumns(const Outputs& outputs, JsonWriter* json) {
  json->Raw("{\"outputs\": ");
  if (outputs.size() == 1) {
    outputs[0].WriteWhole(json);
  } else {
    json->Raw('{');
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i > 0) json->Raw(", ");
      WriteKey(outputs[i], json);
      outputs[i].WriteWhole(json);
    }
    json->Raw('}');
  }
  json->Raw('}');
}

}  // namespace

base::StatusOr<base::ReplyBytes> WritePredictReply(const tensor::Signature& signature,
                                                   BodyFormat format,
                                                   const tensor::TensorList& tensors,
                                                   const base::ReplyLimits& limits) {
  Outputs outputs;
  outputs.reserve(signature.outputs.size());
  size_t element_count = 0;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    outputs.emplace_back(signature.outputs[i], i, tensors);
    MILLPOND_RETURN_IF_ERROR(outputs.back().Check());
    element_count += static_cast<size_t>(outputs.back().element_count());
  }
  if (format == BodyFormat::kRow) MILLPOND_RETURN_IF_ERROR(CheckRows(outputs));
  JsonWriter json(limits, kExpectedOverheadBytes + kExpectedElementBytes * element_count);
  for (const TensorWriter& output : outputs) json.reply()->CheckFits(output.min_text_bytes());
  if (!json.ok()) return json.reply()->status();
  if (format == BodyFormat::kRow) {
    WriteRows(outputs, &json);
  } else {
    WriteColumns(outputs, &json);
  }
  return json.Take();
}

}  // namespace millpond::rest
