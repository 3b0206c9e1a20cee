#pragma once

#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/servable/servable.h"

namespace millpond::inference {

// A GetModelMetadataRequest (tensorflow_serving/apis/get_model_metadata.proto).
struct MetadataRequest {
  std::optional<ModelSpec> model_spec;
  std::vector<std::string> fields;
};

// Decodes a request. Returns INVALID_ARGUMENT if the bytes are not a GetModelMetadataRequest or do
// not name a model. Also returns it if a metadata_field is missing or is not "signature_def", the
// only one supported.
base::Status DecodeMetadataRequest(base::WireReader proto, MetadataRequest* request);

// Returns a serialized GetModelMetadataResponse with the signatures of `servable`.
std::string EncodeMetadata(const servable::Servable& servable);

}  // namespace millpond::inference
