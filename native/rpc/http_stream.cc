#include "native/rpc/http_stream.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "native/base/no_memory.h"
#include "native/rpc/http1_session.h"

namespace millpond::rpc {
namespace {

constexpr int kRequestTimeout = 408;
constexpr int kTooLarge = 413;
constexpr int kMisdirected = 421;
constexpr int kTooMany = 429;
constexpr int kGatewayTimeout = 504;

// The bytes of a stream: its objects, its place in the table, and room for usual headers.
constexpr int64_t kHttpPlaceBytes = 128;
constexpr int64_t kHttpStreamBytes = static_cast<int64_t>(sizeof(HttpStream) + sizeof(StreamCall)) +
                                     kHttpPlaceBytes + RequestHeaders::kRoomBytes;

// A run ends by itself at its deadline, before its next kernel. This is for a kernel that does not
// end.
constexpr int64_t kLateNs = 250'000'000;

// Before so long, a body is not slow: its client may just have begun.
constexpr int64_t kPaceNs = 300'000'000;

base::Status TooLarge(int64_t bytes_max) {
  return {base::Code::kResourceExhausted, "the request's body is larger than " +
                                              std::to_string(bytes_max) +
                                              " bytes; send less at a time"};
}

}  // namespace

HttpStream::HttpStream(const HttpService& service, StreamContext* context, int32_t number,
                       base::ByteBudget::Share charge, CallAccount account)
    : service_(service),
      context_(*context),
      number_(number),
      begin_ns_(context->now_ns),
      request_(std::move(charge), /*is_http=*/true),
      account_(std::move(account)) {}

// --- The request ---

void HttpStream::OnHeader(std::string_view name, std::string_view value) {
  if (request_.headers()->Add(name, value)) return;
  context_.shared->limit_counts.Add(ReachedLimit::kArrivingBytes);
  is_answered_ = true;
  context_.session->Reset(number_, ResetReason::kRefused);
}

void HttpStream::OnHeadersEnd() {
  const RequestHeaders& headers = *request_.headers();
  account_.SetOpenBytes(std::max(headers.charged_bytes(), kHttpStreamBytes));
  const Method& method = service_.Find(headers.http_method(), headers.path());
  MessageOptions options;
  options.bytes_max = method.message_bytes_max;
  options.budget = context_.shared->calls.budget.get();
  options.is_bare = true;
  const base::Status begun = request_.Begin(&method, options, context_.now_ns);
  if (!begun.ok()) return Refuse(begun, HttpStatusOf(begun.code()));
  if (CheckHost()) (void)CheckLength(method);
}

// HTTP/1.0 may have no such header, and passes: no browser sends one.
bool HttpStream::CheckHost() {
  const auto host = request_.headers()->FindMetadata("host");
  if (!host || service_.hosts().Permits(*host, context_.carrier->local_address())) return true;
  Refuse({base::Code::kFailedPrecondition,
          "Host '" + std::string(*host) +
              "' is not a name of this server; use localhost, its address, or a name that "
              "--http_hosts lists"},
         kMisdirected);
  return false;
}

// Refuses a body before it is sent, if its declared length is too much.
bool HttpStream::CheckLength(const Method& method) {
  const auto header = request_.headers()->FindMetadata("content-length");
  if (!header) return true;
  int64_t bytes = 0;
  const char* const end = header->data() + header->size();
  const bool is_number = std::from_chars(header->data(), end, bytes).ec == std::errc();
  if (!is_number || bytes > method.message_bytes_max) {
    Refuse(TooLarge(method.message_bytes_max), kTooLarge);
    return false;
  }
  base::ByteBudget* const budget = context_.shared->calls.budget.get();
  base::ByteBudget::Share fits(budget, UseOf(bytes, method.handler->IsLimited()));
  if (fits.Resize(bytes)) return true;
  Refuse(base::NoMemoryFor("a body of " + std::to_string(bytes) + " bytes", *budget), kTooMany);
  return false;
}

void HttpStream::OnData(std::string_view data) {
  if (!request_.is_receiving()) return;
  body_bytes_ += static_cast<int64_t>(data.size());
  const int64_t bytes_max = request_.method()->message_bytes_max;
  if (body_bytes_ > bytes_max) return Refuse(TooLarge(bytes_max), kTooLarge);
  const base::Status taken = request_.AddData(data, context_.space, context_.now_ns);
  if (!taken.ok()) Refuse(taken, HttpStatusOf(taken.code()));
}

void HttpStream::OnRequestEnd() {
  if (!request_.is_receiving()) return;
  const base::Status ended = request_.End();
  // From here on the admission counts it, or refuses it.
  if (request_.method()->handler->IsLimited()) account()->SetOpenBytes(0);
  if (!ended.ok()) return Refuse(ended, HttpStatusOf(ended.code()));
  StreamCall* const call = MakeCall();
  call->account()->MarkArrived();
  context_.due.push_back(call_);
}

StreamCall* HttpStream::MakeCall() {
  if (call_ == nullptr) {
    call_ =
        std::make_shared<StreamCall>(context_.carrier->shared_from_this(), &context_.shared->calls,
                                     number_, request_.Take(), std::move(account_));
  }
  return call_.get();
}

// --- The answer ---

void HttpStream::Answer(CallEnd end) {
  SetAnswered();
  if (end.http != nullptr) {
    reply_.Set(std::move(end.http), service_.common_fields(), context_.now_ns);
  } else {
    reply_.SetFailure(end.status, end.http_fields, service_.common_fields(), context_.now_ns);
  }
  context_.session->Submit(number_, reply_.Headers(), &reply_);
}

// The request is still arriving, and the rest of it is not read.
void HttpStream::Refuse(const base::Status& status, int http_status) {
  MakeCall()->RefuseArriving(status.code());
  SetAnswered();
  reply_.SetFailure(status, "", service_.common_fields(), context_.now_ns, http_status);
  context_.session->Submit(number_, reply_.Headers(), &reply_);
}

void HttpStream::SetAnswered() {
  is_answered_ = true;
  if (call_ != nullptr) call_->MarkAnswered();
  context_.answered.push_back(number_);
}

// --- Its end, and its limits ---

void HttpStream::Close() {
  if (call_ != nullptr) call_->Close(context_.now_ns);
}

void HttpStream::CountUnread() {
  if (account()->open_bytes() == 0) account()->SetOpenBytes(kHttpStreamBytes);
}

bool HttpStream::IsReceiving(int64_t since_ns) const {
  return !is_answered_ && request_.is_arriving(since_ns);
}

bool HttpStream::EndIfPaused(int64_t since_ns) {
  if (reply_.is_left_unread(since_ns)) {
    context_.session->Reset(number_, ResetReason::kCancelled);
    return true;
  }
  const int64_t request_ns_max = context_.shared->calls.request_ns_max;
  const int64_t age_ns = context_.now_ns - begin_ns_;
  if (is_answered_ || request_ns_max <= 0 || age_ns < request_ns_max) return false;
  if (request_.is_receiving()) {
    Refuse(
        {base::Code::kDeadlineExceeded, "the request's body had not arrived after " +
                                            std::to_string(request_ns_max / WireLimits::kSecondNs) +
                                            " s (--rest_api_timeout_in_ms)"},
        kGatewayTimeout);
    return true;
  }
  if (age_ns < request_ns_max + kLateNs || !request_.method()->handler->IsLimited()) return false;
  CallEnd end;
  end.status = {base::Code::kDeadlineExceeded,
                "the request's time ended before the model answered (--rest_api_timeout_in_ms)"};
  Answer(std::move(end));
  return true;
}

std::optional<double> HttpStream::Pace() const {
  const int64_t age_ns = context_.now_ns - begin_ns_;
  if (is_answered_ || !request_.is_receiving() || age_ns < kPaceNs) return {};
  return static_cast<double>(body_bytes_) / static_cast<double>(age_ns);
}

void HttpStream::GiveUp() {
  Refuse({base::Code::kDeadlineExceeded,
          "the request's body came slowest while all connections were busy; send it again"},
         kRequestTimeout);
}

// --- The protocol ---

int64_t HttpProtocol::stream_bytes() const { return kHttpStreamBytes; }

std::unique_ptr<Session> HttpProtocol::MakeSession(const ServerShared& shared,
                                                   StreamEvents* streams,
                                                   SessionEvents* events) const {
  return std::make_unique<Http1Session>(limits_, shared.calls.budget.get(), streams, events);
}

std::unique_ptr<Stream> HttpProtocol::MakeStream(StreamContext* context, int32_t number,
                                                 base::ByteBudget::Share charge,
                                                 CallAccount account) const {
  return std::make_unique<HttpStream>(service_, context, number, std::move(charge),
                                      std::move(account));
}

}  // namespace millpond::rpc
