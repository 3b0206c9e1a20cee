#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"
#include "native/servable/routing.h"

namespace millpond::inference {

// tensorflow.serving.ModelSpec (tensorflow_serving/apis/model.proto): the servable that a request
// means, and one of its signatures. At most one of version and version_label is set.
struct ModelSpec {
  std::string name;
  std::optional<int64_t> version;
  std::optional<std::string> version_label;
  std::string signature_name;
};

// Merges a serialized ModelSpec into *spec, as protobuf does if a field comes twice. Returns false
// if the bytes do not parse.
[[nodiscard]] bool ReadModelSpec(base::WireReader proto, ModelSpec* spec);

// Returns the ModelSpec that is field 1 of `request`, for callers that need it before the request
// is decoded. Returns an empty spec if it is missing, or if the bytes up to its end do not parse.
// Reads no further than the ModelSpec.
ModelSpec PeekModelSpec(base::WireReader request);
// Returns the name in that spec; "" if it has none.
std::string PeekModelName(base::WireReader request);

// Returns INVALID_ARGUMENT if a request's spec is missing or does not name a model.
base::Status CheckModelSpec(const std::optional<ModelSpec>& spec);

// Returns the version that a request means by `spec`, for a look-up in the serving map. `metadata`
// is null if the canary must not answer. Borrows both.
servable::VersionChoice ToVersionChoice(const ModelSpec& spec,
                                        const servable::RequestMetadata* metadata);

size_t EncodedModelSpecBytes(const ModelSpec& spec);
void WriteModelSpec(const ModelSpec& spec, base::WireWriter* writer);

}  // namespace millpond::inference
