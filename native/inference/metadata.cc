#include "native/inference/metadata.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/limits.h"

namespace millpond::inference {
namespace {

using base::WireReader;
using base::WireTag;
using base::WireType;

constexpr uint32_t kRequestModelSpec = 1;
constexpr uint32_t kRequestMetadataField = 2;
constexpr uint32_t kResponseModelSpec = 1;
constexpr uint32_t kResponseMetadata = 2;
constexpr uint32_t kMapKey = 1;
constexpr uint32_t kMapValue = 2;
constexpr uint32_t kAnyTypeUrl = 1;
constexpr uint32_t kAnyValue = 2;

constexpr std::string_view kSignatureDef = "signature_def";
constexpr std::string_view kSignatureDefTypeUrl =
    "type.googleapis.com/tensorflow.serving.SignatureDefMap";

bool ReadField(WireTag tag, WireReader* proto, MetadataRequest* request) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader body;
  if (tag.field == kRequestModelSpec) {
    if (!request->model_spec) request->model_spec.emplace();
    return proto->ReadDelimited(&body) && ReadModelSpec(body, &*request->model_spec);
  }
  if (tag.field == kRequestMetadataField) return proto->ReadString(&request->fields.emplace_back());
  return proto->SkipField(tag);
}

base::Status ReadRequest(WireReader proto, MetadataRequest* request) {
  WireTag tag;
  while (!proto.AtEnd()) {
    const bool has_room = request->fields.size() <= base::kMaxNamesPerRequest;
    if (has_room && proto.ReadTag(&tag) && ReadField(tag, &proto, request)) continue;
    return base::InvalidArgument(
        "the message's bytes are not a tensorflow.serving.GetModelMetadataRequest, or name more "
        "than " +
        std::to_string(base::kMaxNamesPerRequest) + " metadata_fields");
  }
  return {};
}

base::Status CheckFields(const std::vector<std::string>& fields) {
  if (fields.empty()) {
    return base::InvalidArgument(
        "GetModelMetadataRequest names no metadata_field; ask for "
        "\"signature_def\"");
  }
  for (const std::string& field : fields) {
    if (field != kSignatureDef) {
      return base::InvalidArgument("metadata_field '" + field +
                                   "' is not supported; ask for \"signature_def\"");
    }
  }
  return {};
}

}  // namespace

base::Status DecodeMetadataRequest(WireReader proto, MetadataRequest* request) {
  MILLPOND_RETURN_IF_ERROR(ReadRequest(proto, request));
  MILLPOND_RETURN_IF_ERROR(CheckModelSpec(request->model_spec));
  return CheckFields(request->fields);
}

std::string EncodeMetadata(const servable::Servable& servable) {
  ModelSpec spec;
  spec.name = servable.id().name;
  spec.version = servable.id().version;
  const std::string& definitions = servable.signature_def_map();
  const size_t spec_bytes = EncodedModelSpecBytes(spec);
  const size_t any_bytes = base::DelimitedBytes(kAnyTypeUrl, kSignatureDefTypeUrl.size()) +
                           base::DelimitedBytes(kAnyValue, definitions.size());
  const size_t entry_bytes = base::DelimitedBytes(kMapKey, kSignatureDef.size()) +
                             base::DelimitedBytes(kMapValue, any_bytes);
  std::string reply(base::DelimitedBytes(kResponseModelSpec, spec_bytes) +
                        base::DelimitedBytes(kResponseMetadata, entry_bytes),
                    '\0');
  base::WireWriter writer(reply.data());
  writer.Delimited(kResponseModelSpec, spec_bytes);
  WriteModelSpec(spec, &writer);
  writer.Delimited(kResponseMetadata, entry_bytes);
  writer.BytesField(kMapKey, kSignatureDef);
  writer.Delimited(kMapValue, any_bytes);
  writer.BytesField(kAnyTypeUrl, kSignatureDefTypeUrl);
  writer.BytesField(kAnyValue, definitions);
  return reply;
}

}  // namespace millpond::inference
