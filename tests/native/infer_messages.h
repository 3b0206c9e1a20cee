#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/wire_reader.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

// Returns the bytes of elements in the form of raw contents.
template <typename T>
std::string RawOf(const std::vector<T>& elements) {
  return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T)};
}
inline std::string RawOf(const std::vector<std::string>& elements) {
  WireMessage raw;
  for (const std::string& element : elements) {
    raw.RawValue(static_cast<uint32_t>(element.size())).Raw(element);
  }
  return raw.bytes();
}

// An InferInputTensor without contents.
inline WireMessage InferInput(const std::string& name, const std::string& datatype,
                              const std::vector<int64_t>& dims) {
  WireMessage shape;
  for (const int64_t size : dims) shape.RawVarint(static_cast<uint64_t>(size));
  return WireMessage().Bytes(1, name).Bytes(2, datatype).Message(3, shape);
}

// An entry of map<string, InferParameter>: `choice` is the field of its value.
inline WireMessage TextParameter(const std::string& name, const std::string& text) {
  return WireMessage().Bytes(1, name).Message(2, WireMessage().Bytes(3, text));
}
inline WireMessage NumberParameter(const std::string& name, uint64_t number) {
  return WireMessage().Bytes(1, name).Message(2, WireMessage().Varint(2, number));
}

struct InferResponse {
  struct Output {
    std::string name;
    std::string datatype;
    std::vector<int64_t> dims;
  };

  bool parses = true;
  std::string model_name;
  std::string model_version;
  std::string id;
  std::vector<Output> outputs;
  std::vector<std::string> raw;
};

namespace internal {

inline bool ParseInferOutput(base::WireReader proto, InferResponse::Output* output) {
  base::WireTag tag;
  base::WireReader shape;
  uint64_t size = 0;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.field == 1 && !proto.ReadString(&output->name)) return false;
    if (tag.field == 2 && !proto.ReadString(&output->datatype)) return false;
    if (tag.field > 3) return false;
    if (tag.field != 3) continue;
    if (!proto.ReadDelimited(&shape)) return false;
    for (; !shape.AtEnd(); output->dims.push_back(static_cast<int64_t>(size))) {
      if (!shape.ReadVarint(&size)) return false;
    }
  }
  return true;
}

inline bool ParseInferField(base::WireTag tag, base::WireReader* proto, InferResponse* response) {
  base::WireReader body;
  switch (tag.field) {
    case 1:
      return proto->ReadString(&response->model_name);
    case 2:
      return proto->ReadString(&response->model_version);
    case 3:
      return proto->ReadString(&response->id);
    case 5:
      return proto->ReadDelimited(&body) &&
             ParseInferOutput(body, &response->outputs.emplace_back());
    case 6:
      return proto->ReadBytes(&response->raw.emplace_back());
    default:
      return false;
  }
}

}  // namespace internal

// Reads an inference.ModelInferResponse as this server writes it.
inline InferResponse ParseInferResponse(const std::string& bytes) {
  const SegmentedBytes segmented(bytes);
  base::WireReader reader = segmented.reader();
  InferResponse response;
  base::WireTag tag;
  while (response.parses && !reader.AtEnd()) {
    response.parses = reader.ReadTag(&tag) && internal::ParseInferField(tag, &reader, &response);
  }
  return response;
}

}  // namespace millpond::testing
