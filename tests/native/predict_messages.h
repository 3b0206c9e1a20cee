#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "native/base/wire_reader.h"
#include "tests/native/wire_message.h"

namespace millpond::testing {

// The bytes of a tensorflow.serving.ModelSpec.
inline WireMessage ModelSpecMessage(const std::string& name, std::optional<int64_t> version = {},
                                    const std::string& signature_name = "") {
  WireMessage spec;
  spec.Bytes(1, name);
  if (version) spec.Message(2, WireMessage().Varint(1, static_cast<uint64_t>(*version)));
  if (!signature_name.empty()) spec.Bytes(3, signature_name);
  return spec;
}

// Returns the same with a version_label.
inline WireMessage LabelSpecMessage(const std::string& name, const std::string& label) {
  return ModelSpecMessage(name).Bytes(4, label);
}

inline WireMessage InputMessage(const std::string& name, const std::string& tensor) {
  return WireMessage().Bytes(1, name).Bytes(2, tensor);
}

// The bytes of a tensorflow.serving.PredictRequest. Tensors are bytes here: a serialized
// TensorProto.
inline std::string PredictMessage(const WireMessage& model_spec,
                                  const std::map<std::string, std::string>& inputs,
                                  const std::vector<std::string>& output_filter = {}) {
  WireMessage request;
  request.Message(1, model_spec);
  for (const auto& [name, tensor] : inputs) request.Message(2, InputMessage(name, tensor));
  for (const std::string& name : output_filter) request.Bytes(3, name);
  return request.bytes();
}

struct PredictResponse {
  bool parses = true;
  std::map<std::string, std::string> outputs;
  std::string model_name;
  int64_t version = -1;
  std::string signature_name;
};

namespace internal {

inline bool ParseOutput(base::WireReader entry, PredictResponse* response) {
  base::WireTag tag;
  std::string name;
  return entry.ReadTag(&tag) && tag.field == 1 && entry.ReadString(&name) && entry.ReadTag(&tag) &&
         tag.field == 2 && entry.ReadBytes(&response->outputs[name]) && entry.AtEnd();
}

inline bool ParseSpec(base::WireReader spec, PredictResponse* response) {
  base::WireTag tag;
  base::WireReader body;
  uint64_t version = 0;
  if (!spec.ReadTag(&tag) || tag.field != 1 || !spec.ReadString(&response->model_name))
    return false;
  if (!spec.ReadTag(&tag) || tag.field != 2 || !spec.ReadDelimited(&body)) return false;
  if (!body.AtEnd() && !(body.ReadTag(&tag) && body.ReadVarint(&version))) return false;
  response->version = static_cast<int64_t>(version);
  return spec.ReadTag(&tag) && tag.field == 3 && spec.ReadString(&response->signature_name);
}

}  // namespace internal

// Reads a tensorflow.serving.PredictResponse as this server writes it.
inline PredictResponse ParsePredictResponse(const std::string& bytes) {
  const SegmentedBytes segmented(bytes);
  base::WireReader reader = segmented.reader();
  PredictResponse response;
  base::WireTag tag;
  while (response.parses && !reader.AtEnd()) {
    base::WireReader body;
    response.parses = reader.ReadTag(&tag) && reader.ReadDelimited(&body) &&
                      (tag.field == 1 ? internal::ParseOutput(body, &response)
                                      : internal::ParseSpec(body, &response));
  }
  return response;
}

}  // namespace millpond::testing
