#include "native/rest/rest_service.h"

#include <memory>
#include <utility>

#include "native/base/clock.h"
#include "native/base/share_scope.h"
#include "native/rest/content_coding.h"
#include "native/rest/infer_json.h"
#include "native/rpc/http_answer.h"

namespace millpond::rest {
namespace {

using base::Code;
using base::Status;

// The bytes at each end of a body in which a signature's name is looked for: programs write it
// first or last.
constexpr size_t kLookedAtBytes = 256;

// The limit of the body of a question, which need not have one.
constexpr size_t kQuestionBytesMax = size_t{1} << 20U;

// The smallest reply that is compressed. A shorter reply is one packet either way.
constexpr size_t kGzipBytesMin = 1024;

// Returns the string that follows "signature_name": in a piece of JSON; "" if there is none.
std::string_view SignatureNameIn(std::string_view json) {
  constexpr std::string_view kKey = "\"signature_name\"";
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t key = json.find(kKey);
  if (key == std::string_view::npos) return {};
  size_t at = json.find_first_not_of(kSpace, key + kKey.size());
  if (at == std::string_view::npos || json[at] != ':') return {};
  at = json.find_first_not_of(kSpace, at + 1);
  if (at == std::string_view::npos || json[at] != '"') return {};
  const size_t end = json.find('"', at + 1);
  return end == std::string_view::npos ? std::string_view() : json.substr(at + 1, end - at - 1);
}

// True if a list of codings (RFC 9110, 12.5.3) has gzip with a weight other than 0.
bool AcceptsGzip(std::string_view header) {
  const size_t at = header.find("gzip");
  if (at == std::string_view::npos) return false;
  const std::string_view rest = header.substr(at);
  const std::string_view item = rest.substr(0, rest.find(','));
  const size_t weight = item.find("q=0");
  return weight == std::string_view::npos ||
         item.find_first_of("123456789", weight) != std::string_view::npos;
}

// Sets `*body` to the bytes of the request without their coding. They stay in the blocks
// of the socket, or are copied to `*copy` if they have a coding or came in several pieces.
Status ReadBody(const rpc::ModelCall& call, size_t bytes_max, base::ByteBudget::Share* share,
                std::string* copy, std::string_view* body) {
  base::WireReader reader = call.request();
  std::string joined;
  if (const auto whole = reader.Contiguous()) {
    *body = *whole;
  } else {
    if (!share->Add(static_cast<int64_t>(reader.remaining_bytes()))) {
      return base::ShareScope::NoMemoryFor("a body of " + std::to_string(reader.remaining_bytes()) +
                                           " bytes");
    }
    joined.reserve(reader.remaining_bytes());
    reader.AppendRest(&joined);
    *copy = std::move(joined);
    *body = *copy;
  }
  const auto header = call.FindMetadata("content-encoding");
  if (!header) return {};
  const auto coding = ParseContentCoding(*header);
  if (!coding.ok()) return coding.status();
  if (coding.value() == ContentCoding::kIdentity) return {};
  std::string inflated;
  MILLPOND_RETURN_IF_ERROR(Inflate(coding.value(), *body, bytes_max, &inflated, share));
  *copy = std::move(inflated);
  *body = *copy;
  return {};
}

// Compresses the reply if the client accepts gzip. A reply that cannot be compressed is sent as it
// is. Fails if the client no longer waits for the reply.
Status CompressReply(bool accepts_gzip, const base::ReplyLimits& limits, RestReply* reply,
                     std::string* fields) {
  if (!accepts_gzip || reply->body.size() < kGzipBytesMin) return {};
  auto compressed = Gzip(reply->body.view(), limits);
  const base::Code code = compressed.status().code();
  if (code == base::Code::kDeadlineExceeded || code == base::Code::kCancelled) {
    return compressed.status();
  }
  if (!compressed.ok()) return {};
  reply->body = std::move(compressed.value());
  rpc::AddField("content-encoding", "gzip", fields);
  rpc::AddField("vary", "Accept-Encoding", fields);
  return {};
}

void ReplyWithJson(int status, const std::string& body, rpc::Call* call) {
  auto answer = std::make_shared<rpc::HttpAnswer>();
  answer->status = status;
  rpc::AddField("content-type", "application/json", &answer->fields);
  rpc::AddField("cache-control", "no-store", &answer->fields);
  base::ReplyLimits limits = call->run_context().reply_limits();
  // The server's own text, which answers probes: it has a reserve beside what clients take.
  limits.use = base::ByteBudget::Use::kCall;
  auto copy = base::CopyReply(body, limits);
  if (!copy.ok()) return call->Fail(copy.status());
  answer->body = std::move(copy.value());
  call->ReplyHttp(std::move(answer));
}

rpc::Method RouteTo(const char* name, rpc::Method::Handler handler, size_t body_bytes_max) {
  // JSON takes some 4 bytes for a byte of a tensor.
  constexpr size_t kJsonBytesPerByte = 4;
  rpc::Method method;
  method.path = name;
  method.handler = handler;
  method.message_bytes_max = static_cast<int64_t>(body_bytes_max);
  method.is_http = true;
  method.bytes_per_run_byte = kJsonBytesPerByte;
  return method;
}

}  // namespace

servable::BatchKey BatchKeyOf(const RestTarget& target, std::string_view body) {
  std::string_view signature;
  if (target.method != metrics::Method::kRestModelInfer) {
    signature = SignatureNameIn(body.substr(0, kLookedAtBytes));
    if (signature.empty() && body.size() > kLookedAtBytes) {
      signature = SignatureNameIn(body.substr(body.size() - kLookedAtBytes));
    }
  }
  return servable::BatchKeyOf(target.model.name, signature);
}

std::string RestMethod::ModelNameOf(const rpc::Call& call) const {
  const auto target = ParseRestTarget(call.target());
  return target ? target->model.name : "";
}

// The length and the content of a compressed body show only when it is inflated.
servable::BatchKey RestMethod::BatchKeyOf(const rpc::Call& call) const {
  const auto target = ParseRestTarget(call.target());
  base::WireReader reader = call.request();
  const auto body = reader.Contiguous();
  if (!target || call.FindMetadata("content-encoding")) return servable::kNoBatchKey;
  return rest::BatchKeyOf(*target, body.value_or(""));
}

base::Status RestMethod::Prepare(rpc::ModelCall* call) const {
  auto target = ParseRestTarget(call->target());
  if (!target) return base::Internal("the target is no run of a model");
  MILLPOND_RETURN_IF_ERROR(call->Pin(target->model));
  const servable::ServableId& id = call->servable().id();
  rpc::AddField("x-millpond-model-name", UrlEncode(target->model.name), call->http_fields());
  rpc::AddField("x-millpond-model-version", std::to_string(id.version), call->http_fields());
  std::string copy;
  std::string_view body;
  MILLPOND_RETURN_IF_ERROR(ReadBody(*call, body_bytes_max_, call->decoded(), &copy, &body));
  PreparedRest prepared;
  prepared.run.context = call->prepared()->run.context;
  prepared.run.watch = call->prepared()->run.watch;
  MILLPOND_RETURN_IF_ERROR(PrepareBody(call, body, &prepared));
  call->OfferRun();
  call->prepared()->run = std::move(prepared.run);
  const auto accepted = call->FindMetadata("accept-encoding");
  call->prepared()->encode = [encode = std::move(prepared.encode), fields = call->http_fields(),
                              accepts_gzip = accepted && AcceptsGzip(*accepted)](
                                 servable::PreparedRun* run, base::ReplyBytes* reply) -> Status {
    RestReply answer;
    MILLPOND_RETURN_IF_ERROR(encode(run, &answer));
    rpc::AddField("content-type", answer.content_type, fields);
    if (answer.json_bytes) {
      rpc::AddField(kJsonBytesHeader, std::to_string(*answer.json_bytes), fields);
    }
    MILLPOND_RETURN_IF_ERROR(
        CompressReply(accepts_gzip, run->context.reply_limits(), &answer, fields));
    *reply = std::move(answer.body);
    return {};
  };
  return {};
}

base::Status RestMethod::PrepareBody(rpc::ModelCall* call, std::string_view body,
                                     PreparedRest* prepared) const {
  switch (method_) {
    case metrics::Method::kRestClassify:
      return PrepareClassify(call->servable(), body, prepared);
    case metrics::Method::kRestRegress:
      return PrepareRegress(call->servable(), body, prepared);
    case metrics::Method::kRestModelInfer:
      return PrepareModelInfer(call->servable(), body, call->FindMetadata(kJsonBytesHeader),
                               prepared);
    default:
      return PreparePredict(call->servable(), body, prepared);
  }
}

void MetadataMethod::Handle(rpc::Call* call) {
  const auto spec = ParseMetadataTarget(call->target());
  if (!spec) return call->Fail(base::Internal("the target is no metadata of a model"));
  const auto found =
      parts_.map->LookUp(spec->name, inference::ToVersionChoice(*spec, /*metadata=*/nullptr));
  metrics::RequestRecorder& recorder =
      found.ok() ? found.value().requests() : parts_.statistics->Unmatched(spec->name);
  const auto times = metrics::PhaseTimes::OfTotal(base::MonotonicNs() - call->received_ns());
  recorder.Of(metrics::Method::kGetModelMetadata).Record(found.status().code(), times);
  if (!found.ok()) return call->Fail(found.status());
  ReplyWithJson(200, found.value().metadata_json(), call);
}

void DocumentMethod::Handle(rpc::Call* call) {
  const auto document = documents_.Find(DocumentPath(call->target()));
  // It was removed after its route was found.
  if (document == nullptr) {
    return call->Fail({Code::kNotFound, "nothing is at " + call->target() + " any more"});
  }
  ReplyWithJson(document->status, document->body, call);
}

RestService::RestService(const rpc::ModelMethodParts& parts, const rpc::HttpDocuments* documents,
                         size_t body_bytes_max)
    : documents_(*documents),
      predict_(metrics::Method::kRestPredict, parts, body_bytes_max),
      classify_(metrics::Method::kRestClassify, parts, body_bytes_max),
      regress_(metrics::Method::kRestRegress, parts, body_bytes_max),
      infer_(metrics::Method::kRestModelInfer, parts, body_bytes_max),
      metadata_(parts),
      document_(documents),
      predict_route_(RouteTo("RestPredict", &predict_, body_bytes_max)),
      classify_route_(RouteTo("RestClassify", &classify_, body_bytes_max)),
      regress_route_(RouteTo("RestRegress", &regress_, body_bytes_max)),
      infer_route_(RouteTo("RestModelInfer", &infer_, body_bytes_max)),
      metadata_route_(RouteTo("metadata", &metadata_, kQuestionBytesMax)),
      document_route_(RouteTo("document", &document_, kQuestionBytesMax)) {}

const rpc::Method* RestService::Find(std::string_view http_method, std::string_view target) const {
  if (http_method == "POST") return FindRun(target);
  return http_method == "GET" || http_method == "HEAD" ? FindDocument(target) : nullptr;
}

const rpc::Method* RestService::FindDocument(std::string_view target) const {
  if (ParseMetadataTarget(target)) return &metadata_route_;
  return documents_.Has(DocumentPath(target)) ? &document_route_ : nullptr;
}

const rpc::Method* RestService::FindRun(std::string_view target) const {
  const auto parsed = ParseRestTarget(target);
  if (!parsed) return nullptr;
  switch (parsed->method) {
    case metrics::Method::kRestClassify:
      return &classify_route_;
    case metrics::Method::kRestRegress:
      return &regress_route_;
    case metrics::Method::kRestModelInfer:
      return &infer_route_;
    default:
      return &predict_route_;
  }
}

}  // namespace millpond::rest
