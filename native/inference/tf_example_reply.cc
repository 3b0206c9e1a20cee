#include "native/inference/tf_example_reply.h"

namespace millpond::inference {
namespace {

constexpr uint32_t kResponseResult = 1;
constexpr uint32_t kResponseModelSpec = 2;

}  // namespace

const std::string& SignatureNameOf(const ExampleRequest& request) {
  static const std::string none;
  return request.model_spec ? request.model_spec->signature_name : none;
}

ModelSpec AnsweredSpec(const servable::Servable& servable, const tensor::Signature& signature) {
  ModelSpec spec;
  spec.name = servable.id().name;
  spec.version = servable.id().version;
  spec.signature_name = signature.name;
  return spec;
}

base::StatusOr<base::ReplyBytes> EncodeExampleReply(const servable::Servable& servable,
                                                    const tensor::Signature& signature,
                                                    std::string_view result,
                                                    const base::ReplyLimits& limits) {
  const ModelSpec spec = AnsweredSpec(servable, signature);
  const size_t spec_bytes = EncodedModelSpecBytes(spec);
  base::ReplyBuffer buffer(limits);
  char* const to = buffer.Extend(base::DelimitedBytes(kResponseResult, result.size()) +
                                 base::DelimitedBytes(kResponseModelSpec, spec_bytes));
  if (to == nullptr) return buffer.status();
  base::WireWriter writer(to);
  writer.BytesField(kResponseResult, result);
  writer.Delimited(kResponseModelSpec, spec_bytes);
  WriteModelSpec(spec, &writer);
  return buffer.Take();
}

}  // namespace millpond::inference
