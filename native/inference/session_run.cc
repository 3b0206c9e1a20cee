#include "native/inference/session_run.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "native/base/clock.h"
#include "native/base/limits.h"
#include "native/inference/signature_request.h"
#include "native/servable/session.h"
#include "native/tensor/tensor_codec.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::StatusOr;
using base::WireReader;
using base::WireTag;
using base::WireType;

constexpr uint32_t kRunRequestModelSpec = 1;
constexpr uint32_t kRunRequestFeed = 2;
constexpr uint32_t kRunRequestFetch = 3;
constexpr uint32_t kRunRequestTarget = 4;
constexpr uint32_t kRunRequestOptions = 5;
constexpr uint32_t kRunRequestHasAliasNames = 6;
constexpr uint32_t kOptionsTraceLevel = 1;
constexpr uint32_t kOptionsTimeoutMs = 2;
constexpr uint32_t kNamedTensorName = 1;
constexpr uint32_t kNamedTensorTensor = 2;
constexpr uint32_t kTensorDtype = 1;
constexpr uint32_t kRunResponseTensor = 1;
constexpr uint32_t kRunResponseModelSpec = 3;

constexpr int64_t kNsPerMs = 1'000'000;

bool ReadFeed(WireReader proto, SessionRunRequest::Feed* feed) {
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.field == kNamedTensorName && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadString(&feed->name)) return false;
    } else if (tag.field == kNamedTensorTensor && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadDelimited(&feed->tensor)) return false;
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ReadOptions(WireReader proto, SessionRunRequest* request) {
  WireTag tag;
  uint64_t value = 0;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.type != WireType::kVarint) {
      if (!proto.SkipField(tag)) return false;
      continue;
    }
    if (!proto.ReadVarint(&value)) return false;
    if (tag.field == kOptionsTraceLevel) request->is_traced = value != 0;
    if (tag.field == kOptionsTimeoutMs) request->timeout_ms = static_cast<int64_t>(value);
  }
  return true;
}

bool ReadField(WireTag tag, WireReader* proto, SessionRunRequest* request) {
  WireReader body;
  if (tag.field == kRunRequestHasAliasNames && tag.type == WireType::kVarint) {
    uint64_t value = 0;
    if (!proto->ReadVarint(&value)) return false;
    request->has_alias_names = value != 0;
    return true;
  }
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  switch (tag.field) {
    case kRunRequestModelSpec:
      if (!request->model_spec) request->model_spec.emplace();
      return proto->ReadDelimited(&body) && ReadModelSpec(body, &*request->model_spec);
    case kRunRequestFeed:
      return proto->ReadDelimited(&body) && ReadFeed(body, &request->feeds.emplace_back());
    case kRunRequestFetch:
      return proto->ReadString(&request->fetches.emplace_back());
    case kRunRequestTarget:
      return proto->ReadString(&request->targets.emplace_back());
    case kRunRequestOptions:
      return proto->ReadDelimited(&body) && ReadOptions(body, request);
    default:
      return proto->SkipField(tag);
  }
}

size_t NameCount(const SessionRunRequest& request) {
  return request.feeds.size() + request.fetches.size() + request.targets.size();
}

Status Check(const SessionRunRequest& request) {
  if (request.is_traced) {
    return {base::Code::kUnimplemented,
            "options.trace_level: runs are not traced; leave it at NO_TRACE"};
  }
  if (request.fetches.empty() && request.targets.empty()) {
    return base::InvalidArgument("Must specify at least one target to fetch or execute.");
  }
  return {};
}

// Returns the graph's short name of a tensor: "x" for "x:0".
std::string_view TensorName(std::string_view name) {
  constexpr std::string_view kFirst = ":0";
  const bool is_first =
      name.size() > kFirst.size() && name.substr(name.size() - kFirst.size()) == kFirst;
  return is_first ? name.substr(0, name.size() - kFirst.size()) : name;
}

// Refuses a tensor that is fed twice, because it is undefined which of the two values a run would
// take.
Status CheckFedOnce(const std::vector<std::string>& feeds) {
  std::vector<std::string_view> names;
  names.reserve(feeds.size());
  for (const std::string& feed : feeds) names.push_back(TensorName(feed));
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return base::InvalidArgument("feed '" + std::string(*twice) + "' is named twice; send it once");
}

Status ResolveAlias(const std::vector<tensor::TensorSpec>& specs,
                    const tensor::Signature& signature, std::string* name) {
  const int index = tensor::FindTensorSpec(specs, *name);
  if (index < 0) {
    return base::InvalidArgument("tensor_name_is_alias: signature '" + signature.name +
                                 "' has no '" + *name + "'");
  }
  *name = specs[index].tensor_name;
  return {};
}

StatusOr<servable::SessionRunNames> NamesOf(const servable::Servable& servable,
                                            const SessionRunRequest& request) {
  servable::SessionRunNames names{{}, request.fetches, request.targets};
  for (const auto& feed : request.feeds) names.feeds.push_back(feed.name);
  if (!request.has_alias_names) {
    MILLPOND_RETURN_IF_ERROR(CheckFedOnce(names.feeds));
    return names;
  }
  const auto signature =
      FindSignature(servable, request.model_spec ? request.model_spec->signature_name : "");
  if (!signature.ok()) return signature.status();
  const tensor::Signature& found = *signature.value();
  for (auto& name : names.feeds) {
    MILLPOND_RETURN_IF_ERROR(ResolveAlias(found.inputs, found, &name));
  }
  for (auto& name : names.fetches) {
    MILLPOND_RETURN_IF_ERROR(ResolveAlias(found.outputs, found, &name));
  }
  MILLPOND_RETURN_IF_ERROR(CheckFedOnce(names.feeds));
  return names;
}

// Returns the dtype of a serialized TensorProto, or 0, which is not a valid dtype, if the proto
// does not set it.
int DtypeOf(WireReader tensor) {
  WireTag tag;
  uint64_t dtype = 0;
  while (!tensor.AtEnd() && tensor.ReadTag(&tag)) {
    const bool is_dtype = tag.field == kTensorDtype && tag.type == WireType::kVarint;
    if (is_dtype ? !tensor.ReadVarint(&dtype) : !tensor.SkipField(tag)) break;
  }
  return static_cast<int>(dtype);
}

// Decodes the feeds. A feed may be any tensor, because the graph's kernels check what they take.
Status DecodeFeeds(const SessionRunRequest& request, tensor::TensorList* fed) {
  fed->Reset(request.feeds.size());
  for (size_t i = 0; i < request.feeds.size(); ++i) {
    tensor::TensorSpec any;
    any.dtype = DtypeOf(request.feeds[i].tensor);
    const Status decoded = tensor::DecodeTensor(request.feeds[i].tensor, any, i, fed);
    if (decoded.ok()) continue;
    return {decoded.code(), "feed '" + request.feeds[i].name + "': " + decoded.message()};
  }
  return {};
}

tensor::RunContext EndingAfter(const tensor::RunContext& run, int64_t timeout_ms, int64_t now_ns) {
  tensor::RunContext limited = run;
  if (timeout_ms <= 0 || timeout_ms > (INT64_MAX - now_ns) / kNsPerMs) return limited;
  limited.deadline_ns = std::min(run.deadline_ns, now_ns + timeout_ms * kNsPerMs);
  return limited;
}

StatusOr<base::ReplyBytes> Encode(const ModelSpec& spec, const std::vector<std::string>& names,
                                  const tensor::TensorList& tensors,
                                  const base::ReplyLimits& limits) {
  constexpr auto kEncoding = tensor::TensorEncoding::kTypedFields;
  base::ReplyBuffer buffer(limits);
  const size_t spec_bytes = EncodedModelSpecBytes(spec);
  size_t bytes = base::DelimitedBytes(kRunResponseModelSpec, spec_bytes);
  std::vector<size_t> tensor_bytes;
  const auto named_bytes = [&](size_t i) {
    return base::DelimitedBytes(kNamedTensorName, names[i].size()) +
           base::DelimitedBytes(kNamedTensorTensor, tensor_bytes[i]);
  };
  for (size_t i = 0; i < names.size(); ++i) {
    tensor_bytes.push_back(tensor::EncodedTensorBytes(tensors, i, kEncoding, &buffer));
    bytes += base::DelimitedBytes(kRunResponseTensor, named_bytes(i));
  }
  char* const to = buffer.Extend(bytes);
  if (to == nullptr) return buffer.status();
  base::WireWriter writer(to);
  for (size_t i = 0; i < names.size(); ++i) {
    writer.Delimited(kRunResponseTensor, named_bytes(i));
    writer.BytesField(kNamedTensorName, names[i]);
    writer.Delimited(kNamedTensorTensor, tensor_bytes[i]);
    tensor::EncodeTensor(tensors, i, kEncoding, &buffer, &writer);
  }
  writer.Delimited(kRunResponseModelSpec, spec_bytes);
  WriteModelSpec(spec, &writer);
  return buffer.Take();
}

void EnterPhase(metrics::Phase phase, metrics::PhaseWatch* watch) {
  if (watch != nullptr) watch->Enter(phase, base::MonotonicNs());
}

}  // namespace

Status DecodeSessionRunRequest(WireReader proto, SessionRunRequest* request) {
  const size_t message_bytes = proto.remaining_bytes();
  WireTag tag;
  while (!proto.AtEnd()) {
    const bool has_room = NameCount(*request) < base::kMaxNamesPerRequest;
    if (has_room && proto.ReadTag(&tag) && ReadField(tag, &proto, request)) continue;
    return base::InvalidArgument(
        "the message's " + std::to_string(message_bytes) +
        " bytes are not a tensorflow.serving.SessionRunRequest, or name more than " +
        std::to_string(base::kMaxNamesPerRequest) + " tensors and nodes");
  }
  return {};
}

Status AnswerSessionRun(const servable::Servable& servable, const SessionRunRequest& request,
                        const tensor::RunContext& run, int64_t now_ns, base::ReplyBytes* reply,
                        metrics::PhaseWatch* watch) {
  MILLPOND_RETURN_IF_ERROR(Check(request));
  const auto names = NamesOf(servable, request);
  if (!names.ok()) return names.status();
  const servable::Session* const session = servable.session();
  if (session == nullptr) {
    return {base::Code::kUnimplemented, "this version has no session that clients may run"};
  }
  tensor::TensorList fed;
  MILLPOND_RETURN_IF_ERROR(DecodeFeeds(request, &fed));
  tensor::TensorList fetched;
  EnterPhase(metrics::Phase::kRun, watch);
  const tensor::RunContext limited = EndingAfter(run, request.timeout_ms, now_ns);
  MILLPOND_RETURN_IF_ERROR(session->RunSession(names.value(), limited, fed, &fetched));
  EnterPhase(metrics::Phase::kEncode, watch);
  ModelSpec spec;
  spec.name = servable.id().name;
  spec.version = servable.id().version;
  return base::MoveValue(Encode(spec, request.fetches, fetched, limited.reply_limits()), reply);
}

}  // namespace millpond::inference
