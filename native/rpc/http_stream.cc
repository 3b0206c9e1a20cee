#include "native/rpc/http_stream.h"

#include <charconv>
#include <utility>

#include "native/base/no_memory.h"
#include "native/rpc/http_head.h"

namespace millpond::rpc {
namespace {

constexpr int kRequestTimeout = 408;
constexpr int kTooLarge = 413;
constexpr int kMisdirected = 421;
constexpr int kTooMany = 429;
constexpr int kHeadersTooLarge = 431;
constexpr int kGatewayTimeout = 504;

// The bytes of a stream: its objects, its place in the table, and room for usual headers.
constexpr int64_t kHttpPlaceBytes = 128;
constexpr int64_t kHttpStreamBytes = static_cast<int64_t>(sizeof(HttpStream) + sizeof(StreamCall)) +
                                     kHttpPlaceBytes + RequestHeaders::kRoomBytes;

// A run ends at its deadline by itself, before its next kernel. If a kernel does not end, the
// client is answered this long after the deadline.
constexpr int64_t kLateNs = 250'000'000;

// A body that is younger is not slow, because its client may just have begun.
constexpr int64_t kPaceNs = 300'000'000;

base::Status TooLarge(int64_t bytes_max) {
  return {base::Code::kResourceExhausted, "the request's body is larger than " +
                                              std::to_string(bytes_max) +
                                              " bytes; send less at a time"};
}

}  // namespace

HttpStream::HttpStream(const HttpService& service, StreamContext* context, int32_t number,
                       base::ByteBudget::Share charge, CallAccount account)
    : CallStream(context, number, IncomingRequest(std::move(charge), /*is_http=*/true),
                 std::move(account), kHttpStreamBytes),
      service_(service),
      begin_ns_(context->now_ns) {}

// --- The request ---

void HttpStream::OnHeadersEnd() {
  CountHeaders();
  const RequestHeaders& headers = *mutable_request()->headers();
  is_head_ = headers.http_method() == "HEAD";
  if (!CheckTarget()) return;
  const Method& method = service_.Find(headers.http_method(), headers.path());
  MessageOptions options;
  options.bytes_max = method.message_bytes_max;
  options.budget = context().shared->calls.budget.get();
  options.is_bare = true;
  const base::Status begun = mutable_request()->Begin(&method, options, context().now_ns);
  if (!begun.ok()) return Refuse(begun);
  if (CheckHost()) (void)CheckLength(method);
}

bool HttpStream::CheckTarget() {
  const RequestHeaders& headers = *mutable_request()->headers();
  if (headers.http_method() == "CONNECT") {
    RefuseWith({base::Code::kUnimplemented, "CONNECT is not supported; this server is no proxy"},
               {});
  } else if (!IsTarget(headers.path())) {
    RefuseWith(base::InvalidArgument("the target has bytes that no URL has; percent-encode them"),
               {});
  } else {
    return true;
  }
  return false;
}

// Refuses a Host that is malformed, or that does not name this server. A request of HTTP/1.0
// without Host passes, because no browser sends one.
bool HttpStream::CheckHost() {
  const auto host = mutable_request()->headers()->FindMetadata("host");
  if (!host) return true;
  const std::string fault = HostFault(*host);
  if (!fault.empty()) {
    Refuse(base::InvalidArgument(fault));
    return false;
  }
  if (service_.hosts().Permits(*host, context().carrier->local_address())) return true;
  RefuseWith({base::Code::kFailedPrecondition,
              "Host '" + std::string(*host) +
                  "' is not a name of this server; use localhost, its address, or a name that "
                  "--http_hosts lists"},
             kMisdirected);
  return false;
}

// Refuses a body before it is sent, if its declared length is too much.
bool HttpStream::CheckLength(const Method& method) {
  const auto header = mutable_request()->headers()->FindMetadata("content-length");
  if (!header) return true;
  int64_t bytes = 0;
  const char* const end = header->data() + header->size();
  const bool is_number = std::from_chars(header->data(), end, bytes).ec == std::errc();
  if (!is_number || bytes > method.message_bytes_max) {
    RefuseWith(TooLarge(method.message_bytes_max), kTooLarge);
    return false;
  }
  base::ByteBudget* const budget = context().shared->calls.budget.get();
  base::ByteBudget::Share fits(budget, UseOf(bytes, method.is_of_model()));
  if (fits.Resize(bytes)) return true;
  RefuseWith(base::NoMemoryFor("a body of " + std::to_string(bytes) + " bytes", *budget), kTooMany);
  return false;
}

void HttpStream::OnData(std::string_view data) {
  if (!request().is_receiving()) return;
  body_bytes_ += static_cast<int64_t>(data.size());
  const int64_t bytes_max = request().method()->message_bytes_max;
  if (body_bytes_ > bytes_max) return RefuseWith(TooLarge(bytes_max), kTooLarge);
  const base::Status taken = mutable_request()->AddData(data, context().space, context().now_ns);
  if (!taken.ok()) Refuse(taken);
}

// --- The answer ---

void HttpStream::Answer(CallEnd end) {
  MarkAnswered();
  if (end.http != nullptr) {
    reply_.Set(std::move(end.http), service_.common_fields(), context().now_ns);
  } else {
    reply_.SetFailure(end.status, end.http_fields, service_.common_fields(), context().now_ns);
  }
  Submit();
}

// Answers a request that may still be arriving. The rest of it is not used.
void HttpStream::RefuseWith(const base::Status& status, std::optional<int> http_status) {
  DropRequest(status.code());
  MarkAnswered();
  reply_.SetFailure(status, "", service_.common_fields(), context().now_ns, http_status);
  Submit();
}

void HttpStream::RefuseLongHeaders() {
  RefuseWith({base::Code::kResourceExhausted, "the headers are too long; shorten them"},
             kHeadersTooLarge);
}

void HttpStream::Submit() {
  Session& session = *context().session;
  if (is_head_ || !reply_.has_body()) return session.Submit(number(), reply_.Headers());
  session.Submit(number(), reply_.Headers(), &reply_);
}

// --- Its limits ---

bool HttpStream::EndIfPaused(int64_t since_ns) {
  if (reply_.is_left_unread(since_ns)) {
    context().session->Reset(number(), ResetReason::kCancelled);
    return true;
  }
  const int64_t request_ns_max = context().shared->calls.request_ns_max;
  const int64_t age_ns = context().now_ns - begin_ns_;
  if (is_answered() || request_ns_max <= 0 || age_ns < request_ns_max) return false;
  // Without a method, not all headers have come.
  if (request().method() == nullptr || request().is_receiving()) {
    RefuseWith(
        {base::Code::kDeadlineExceeded, "the request's body had not arrived after " +
                                            std::to_string(request_ns_max / WireLimits::kSecondNs) +
                                            " s (--rest_api_timeout_in_ms)"},
        kGatewayTimeout);
    return true;
  }
  if (age_ns < request_ns_max + kLateNs || !request().method()->is_of_model()) return false;
  CallEnd end;
  end.status = {base::Code::kDeadlineExceeded,
                "the request's time ended before the model answered (--rest_api_timeout_in_ms)"};
  Answer(std::move(end));
  return true;
}

std::optional<double> HttpStream::Pace() const {
  const int64_t age_ns = context().now_ns - begin_ns_;
  if (is_answered() || !request().is_receiving() || age_ns < kPaceNs) return {};
  constexpr double kSecondNs = 1e9;
  return static_cast<double>(body_bytes_) * kSecondNs / static_cast<double>(age_ns);
}

void HttpStream::GiveUp() {
  RefuseWith({base::Code::kDeadlineExceeded,
              "the request's body came slowest while all connections were busy; send it again"},
             kRequestTimeout);
}

// --- The protocol ---

int64_t HttpProtocol::stream_bytes() const { return kHttpStreamBytes; }

std::unique_ptr<Session> HttpProtocol::MakeSession(const ServerShared& shared,
                                                   StreamEvents* streams,
                                                   SessionEvents* events) const {
  return std::make_unique<HttpSession>(shared.limits, limits_, shared.calls.budget.get(), streams,
                                       events);
}

std::unique_ptr<Stream> HttpProtocol::MakeStream(StreamContext* context, int32_t number,
                                                 base::ByteBudget::Share charge,
                                                 CallAccount account) const {
  return std::make_unique<HttpStream>(service_, context, number, std::move(charge),
                                      std::move(account));
}

}  // namespace millpond::rpc
