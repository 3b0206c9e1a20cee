#include "native/rpc/http_service.h"

#include <algorithm>
#include <array>
#include <utility>

#include "native/base/ascii_text.h"
#include "native/rpc/call.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/http_head.h"

namespace millpond::rpc {
namespace {

// A few parameters, or a configuration: Python parses it.
constexpr int64_t kPageBodyBytesMax = int64_t{1} << 20U;

constexpr std::string_view kModelsV1 = "/v1/models";
constexpr std::string_view kV2 = "/v2";

// True if `prefix` is the path, or whole segments of it.
bool IsBelow(std::string_view path, std::string_view prefix) {
  return base::StartsWith(path, prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '/');
}

// /v1/models/NAME and one of its versions or labels, and /v2/models/NAME[/versions/N]/ready.
bool AsksAboutModel(std::string_view path) {
  if (IsBelow(path, kModelsV1)) {
    const auto slashes = std::count(path.begin(), path.end(), '/');
    const bool has_verb = path.find(':') != std::string_view::npos;
    return !has_verb && (slashes == 3 || slashes == 5);
  }
  return base::StartsWith(path, "/v2/models/") && base::EndsWith(path, "/ready");
}

// Answers 200 as long as the process lives, also while it drains.
class AliveHandler final : public CallHandler {
 public:
  void Handle(Call* call) override {
    auto answer = std::make_shared<HttpAnswer>();
    AddField("cache-control", "no-store", &answer->fields);
    AddField("content-type", "text/plain; charset=utf-8", &answer->fields);
    answer->body = std::move(base::CopyReply("ok\n", {}).value());
    call->ReplyHttp(std::move(answer));
  }
};

// Answers the question of a browser if a page of another site may send a request (CORS).
class PreflightHandler final : public CallHandler {
 public:
  void Handle(Call* call) override {
    const std::string_view origin = call->FindMetadata("origin").value_or("");
    if (base::StartsWith(origin, "http://") || base::StartsWith(origin, "https://")) {
      return call->ReplyHttp(std::make_shared<HttpAnswer>());
    }
    call->Fail(base::FailedPrecondition(
        "OPTIONS without an Origin header that begins with http:// or https:// is not a CORS "
        "preflight request"));
  }
};

// Answers `OPTIONS *`, which asks about the server as a whole (RFC 9110, 9.3.7).
class AsteriskHandler final : public CallHandler {
 public:
  void Handle(Call* call) override {
    auto answer = std::make_shared<HttpAnswer>();
    AddField("allow", "GET, HEAD, POST, OPTIONS", &answer->fields);
    call->ReplyHttp(std::move(answer));
  }
};

// Hands a request over to Python.
class AskHandler final : public CallHandler {
 public:
  explicit AskHandler(RareCallQueue* queue) : queue_(*queue) {}
  void Handle(Call* call) override {
    base::StatusOr<base::ChargedText> body = call->TakeRequest();
    if (!body.ok()) return call->Fail(body.status());
    queue_.Put(std::make_unique<RareCall>(call, std::move(body.value()), nullptr));
  }

 private:
  RareCallQueue& queue_;
};

Method RouteTo(const char* name, CallHandler* handler) {
  Method method;
  method.path = name;
  method.handler = handler;
  method.message_bytes_max = kPageBodyBytesMax;
  method.is_http = true;
  return method;
}

}  // namespace

HttpService::HttpService(const HttpOptions& options, const HttpRoutes* runs)
    : hosts_(options.hosts ? HostRule(*options.hosts) : HostRule()),
      common_fields_(CorsFields(options.has_cors)),
      last_fields_(common_fields_ + "connection: close\r\n"),
      probe_paths_(options.probe_paths.begin(), options.probe_paths.end()),
      runs_(runs),
      alive_(std::make_unique<AliveHandler>()),
      preflight_(std::make_unique<PreflightHandler>()),
      asterisk_(std::make_unique<AsteriskHandler>()),
      ask_probe_(std::make_unique<AskHandler>(&probes_)),
      ask_page_(std::make_unique<AskHandler>(&pages_)),
      alive_route_(RouteTo("alive", alive_.get())),
      preflight_route_(RouteTo("preflight", preflight_.get())),
      asterisk_route_(RouteTo("asterisk", asterisk_.get())),
      probe_route_(RouteTo("probe", ask_probe_.get())),
      page_route_(RouteTo("page", ask_page_.get())) {}

HttpService::~HttpService() = default;

bool HttpService::IsProbe(std::string_view path) const {
  static constexpr std::array<std::string_view, 6> kPaths = {
      "/healthz",        "/readyz",         "/metrics", "/monitoring/prometheus/metrics",
      "/v2/health/live", "/v2/health/ready"};
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end() ||
         probe_paths_.count(std::string(path)) > 0 || AsksAboutModel(path);
}

const Method& HttpService::Find(std::string_view http_method, std::string_view target) const {
  if (http_method == "OPTIONS" && target == "*") return asterisk_route_;
  if (const Method* const run = runs_->Find(http_method, target)) return *run;
  const std::string path = base::LowerOf(target.substr(0, target.find_first_of("?#")));
  const bool is_rest = IsBelow(path, kModelsV1) || IsBelow(path, kV2);
  if (http_method == "OPTIONS" && (is_rest || !common_fields_.empty())) {
    return preflight_route_;
  }
  if (http_method != "GET" && http_method != "HEAD") return page_route_;
  if (path == "/healthz") return alive_route_;
  return IsProbe(path) ? probe_route_ : page_route_;
}

}  // namespace millpond::rpc
