#include "native/rpc/grpc_stream.h"

#include <string>
#include <utility>

#include "native/rpc/grpc_text.h"
#include "native/rpc/http2_session.h"

namespace millpond::rpc {
namespace {

constexpr int kHttpOk = 200;
constexpr int kHttpMethodNotAllowed = 405;
constexpr int kHttpUnsupportedMediaType = 415;

// The bytes of a stream: its objects, its place in the table, and room for usual headers.
constexpr int64_t kPlaceBytes = 128;
constexpr int64_t kStreamBytes = static_cast<int64_t>(sizeof(GrpcStream) + sizeof(StreamCall)) +
                                 kPlaceBytes + RequestHeaders::kRoomBytes;

// Returns the HTTP status that refuses headers which are no call of gRPC; kHttpOk if they are one.
int HttpStatusOf(const RequestHeaders& headers) {
  if (!headers.is_post()) return kHttpMethodNotAllowed;
  return IsGrpcContentType(headers.content_type()) ? kHttpOk : kHttpUnsupportedMediaType;
}

}  // namespace

GrpcStream::GrpcStream(StreamContext* context, int32_t number, base::ByteBudget::Share charge,
                       CallAccount account)
    : CallStream(context, number, IncomingRequest(std::move(charge)), std::move(account),
                 kStreamBytes) {}

// --- The request ---

void GrpcStream::OnHeadersEnd() {
  CountHeaders();
  const RequestHeaders& headers = *mutable_request()->headers();
  const int http_status = HttpStatusOf(headers);
  if (http_status != kHttpOk) return RefuseHeaders(http_status);
  const ServerShared& shared = *context().shared;
  const auto method = shared.methods.find(headers.path());
  if (method == shared.methods.end()) {
    return Refuse({base::Code::kUnimplemented, "this server has no method " + headers.path()});
  }
  MessageOptions options;
  options.bytes_max = shared.calls.message_bytes_max;
  options.budget = shared.calls.budget.get();
  const base::Status begun = mutable_request()->Begin(&method->second, options, context().now_ns);
  if (!begun.ok()) Refuse(begun);
}

void GrpcStream::OnData(std::string_view data) {
  if (!request().is_receiving()) return;
  const base::Status taken = mutable_request()->AddData(data, context().space, context().now_ns);
  if (!taken.ok()) return Refuse(taken);
  if (request().has_messages()) AddDue();
}

// Takes no message of a client that does not read its answers, because each message may cause an
// answer that is much longer. The next messages wait until the client has read (OnDataSent).
bool GrpcStream::TakeMessage(base::ChargedText* message, bool* is_end) {
  resumes_reading_ = reply_.waiting_count() > 0;
  if (resumes_reading_) return false;
  *is_end = request().has_ended() && !request().has_messages();
  if (!request().has_messages()) return false;
  *message = mutable_request()->TakeNext();
  return true;
}

// --- The answer ---

bool GrpcStream::Send(std::shared_ptr<OutMessage> message, size_t waiting_max) {
  if (reply_.waiting_count() >= waiting_max) return false;
  reply_.Add(std::move(message), context().now_ns);
  SubmitBody();
  return true;
}

void GrpcStream::Answer(CallEnd end) {
  MarkAnswered();
  reply_.End(std::move(end), context().now_ns);
  if (reply_.waiting_count() > 0 || reply_.is_begun()) return SubmitBody();
  context().session->Submit(number(), reply_.HeadersWithEnd());
}

void GrpcStream::Refuse(const base::Status& status) {
  DropRequest(status.code());
  CallEnd end;
  end.status = status;
  Answer(std::move(end));
}

void GrpcStream::RefuseLongHeaders() {
  is_answered_ = true;
  context().session->Reset(number(), ResetReason::kTooMuch);
}

void GrpcStream::RefuseHeaders(int http_status) {
  is_answered_ = true;
  mutable_request()->headers()->Free();
  const std::string text = std::to_string(http_status);
  HeaderList headers;
  headers.Add(":status", text);
  context().session->Submit(number(), headers);
}

void GrpcStream::SubmitBody() {
  if (reply_.is_begun()) return context().session->Resume(number());
  reply_.MarkBegun();
  context().session->Submit(number(), reply_.Headers(), &reply_);
}

void GrpcStream::OnDataSent() {
  reply_.NoteSent(context().now_ns);
  if (reply_.waiting_count() == 0 && std::exchange(resumes_reading_, false)) AddDue();
}

bool GrpcStream::EndIfPaused(int64_t since_ns) {
  if (reply_.is_left_unread(since_ns)) {
    context().session->Reset(number(), ResetReason::kCancelled);
    return true;
  }
  if (is_answered() || !request().is_paused(since_ns)) return false;
  const int64_t pause_seconds = context().shared->limits.pause_ns / WireLimits::kSecondNs;
  Refuse({base::Code::kDeadlineExceeded, "no part of the message came for " +
                                             std::to_string(pause_seconds) +
                                             " s; send it without a pause"});
  return true;
}

// --- The protocol ---

int64_t GrpcProtocol::stream_bytes() const { return kStreamBytes; }

std::unique_ptr<Session> GrpcProtocol::MakeSession(const ServerShared& shared,
                                                   StreamEvents* streams,
                                                   SessionEvents* events) const {
  return std::make_unique<Http2Session>(shared.limits, shared.calls.budget.get(), streams, events);
}

std::unique_ptr<Stream> GrpcProtocol::MakeStream(StreamContext* context, int32_t number,
                                                 base::ByteBudget::Share charge,
                                                 CallAccount account) const {
  return std::make_unique<GrpcStream>(context, number, std::move(charge), std::move(account));
}

}  // namespace millpond::rpc
