#include "native/inference/model_spec.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using base::WireTag;
using base::WireType;

constexpr uint32_t kName = 1;
constexpr uint32_t kVersion = 2;
constexpr uint32_t kSignatureName = 3;
constexpr uint32_t kVersionLabel = 4;
constexpr uint32_t kInt64Value = 1;  // google.protobuf.Int64Value

bool ReadInt64Value(WireReader proto, int64_t* value) {
  WireTag tag;
  uint64_t raw = 0;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.field == kInt64Value && tag.type == WireType::kVarint) {
      if (!proto.ReadVarint(&raw)) return false;
      *value = static_cast<int64_t>(raw);
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

// version and version_label are a oneof: the field that comes last counts.
bool ReadVersion(WireReader* proto, ModelSpec* spec) {
  WireReader body;
  int64_t version = spec->version.value_or(0);
  if (!proto->ReadDelimited(&body) || !ReadInt64Value(body, &version)) return false;
  spec->version = version;
  spec->version_label.reset();
  return true;
}

bool ReadVersionLabel(WireReader* proto, ModelSpec* spec) {
  std::string label;
  if (!proto->ReadString(&label)) return false;
  spec->version_label = std::move(label);
  spec->version.reset();
  return true;
}

bool ReadField(WireTag tag, WireReader* proto, ModelSpec* spec) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  switch (tag.field) {
    case kName:
      return proto->ReadString(&spec->name);
    case kSignatureName:
      return proto->ReadString(&spec->signature_name);
    case kVersion:
      return ReadVersion(proto, spec);
    case kVersionLabel:
      return ReadVersionLabel(proto, spec);
    default:
      return proto->SkipField(tag);
  }
}

size_t VersionBytes(int64_t version) {
  if (version == 0) return 0;
  return base::TagBytes(kInt64Value) + base::VarintBytes(static_cast<uint64_t>(version));
}

}  // namespace

bool ReadModelSpec(WireReader proto, ModelSpec* spec) {
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag) || !ReadField(tag, &proto, spec)) return false;
  }
  return true;
}

ModelSpec PeekModelSpec(base::WireReader request) {
  constexpr uint32_t kModelSpec = 1;
  WireTag tag;
  WireReader body;
  ModelSpec spec;
  while (!request.AtEnd() && request.ReadTag(&tag)) {
    if (tag.field == kModelSpec && tag.type == WireType::kLengthDelimited) {
      const bool parses = request.ReadDelimited(&body) && ReadModelSpec(body, &spec);
      return parses ? spec : ModelSpec();
    }
    if (!request.SkipField(tag)) break;
  }
  return {};
}

std::string PeekModelName(base::WireReader request) { return PeekModelSpec(request).name; }

base::Status CheckModelSpec(const std::optional<ModelSpec>& spec) {
  if (!spec) return base::InvalidArgument("Missing ModelSpec; set model_spec.name");
  if (spec->name.empty()) {
    return base::InvalidArgument("ModelSpec has no name specified; set model_spec.name");
  }
  return {};
}

servable::VersionChoice ToVersionChoice(const ModelSpec& spec,
                                        const servable::RequestMetadata* metadata) {
  return {spec.version, spec.version_label, metadata};
}

size_t EncodedModelSpecBytes(const ModelSpec& spec) {
  size_t bytes = base::DelimitedBytes(kName, spec.name.size());
  if (spec.version) bytes += base::DelimitedBytes(kVersion, VersionBytes(*spec.version));
  if (spec.signature_name.empty()) return bytes;
  return bytes + base::DelimitedBytes(kSignatureName, spec.signature_name.size());
}

void WriteModelSpec(const ModelSpec& spec, base::WireWriter* writer) {
  writer->BytesField(kName, spec.name);
  if (spec.version) {
    writer->Delimited(kVersion, VersionBytes(*spec.version));
    if (*spec.version != 0) writer->VarintField(kInt64Value, static_cast<uint64_t>(*spec.version));
  }
  if (!spec.signature_name.empty()) writer->BytesField(kSignatureName, spec.signature_name);
}

}  // namespace millpond::inference
