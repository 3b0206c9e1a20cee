#include "native/rpc/grpc_stream.h"

#include <algorithm>
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

// The HTTP status for headers that are no gRPC call; kHttpOk if they are one.
int HttpStatusOf(const RequestHeaders& headers) {
  if (!headers.is_post()) return kHttpMethodNotAllowed;
  return IsGrpcContentType(headers.content_type()) ? kHttpOk : kHttpUnsupportedMediaType;
}

}  // namespace

// --- The request ---

void GrpcStream::OnHeader(std::string_view name, std::string_view value) {
  RequestHeaders* const headers = request_.headers();
  ServerShared* const shared = context_.shared;
  const bool is_taken = headers->Add(name, value);
  if (is_taken && headers->bytes() <= shared->limits.header_list_bytes_max) return;
  shared->limit_counts.Add(is_taken ? ReachedLimit::kHeaderBytes : ReachedLimit::kArrivingBytes);
  context_.session->Reset(number_, is_taken ? ResetReason::kTooMuch : ResetReason::kRefused);
  is_answered_ = true;
}

void GrpcStream::OnHeadersEnd() {
  const RequestHeaders& headers = *request_.headers();
  account_.SetOpenBytes(std::max(headers.charged_bytes(), kStreamBytes));
  const int http_status = HttpStatusOf(headers);
  if (http_status != kHttpOk) return RefuseHeaders(http_status);
  const ServerShared& shared = *context_.shared;
  const auto method = shared.methods.find(headers.path());
  if (method == shared.methods.end()) {
    return Refuse({base::Code::kUnimplemented, "this server has no method " + headers.path()});
  }
  MessageOptions options;
  options.bytes_max = shared.calls.message_bytes_max;
  options.budget = shared.calls.budget.get();
  const base::Status begun = request_.Begin(&method->second, options, context_.now_ns);
  if (!begun.ok()) Refuse(begun);
}

void GrpcStream::OnData(std::string_view data) {
  if (!request_.is_receiving()) return;
  const base::Status taken = request_.AddData(data, context_.space, context_.now_ns);
  if (!taken.ok()) return Refuse(taken);
  if (request_.has_messages()) AddDue(MakeCall());
}

void GrpcStream::OnRequestEnd() {
  if (!request_.is_receiving()) return;
  const base::Status ended = request_.End();
  // From here on the admission counts it, or refuses it.
  if (request_.method()->handler->IsLimited()) account()->SetOpenBytes(0);
  if (!ended.ok()) return Refuse(ended);
  StreamCall* const call = MakeCall();
  call->account()->MarkArrived();
  AddDue(call);
}

StreamCall* GrpcStream::MakeCall() {
  if (call_ == nullptr) {
    call_ =
        std::make_shared<StreamCall>(context_.carrier->shared_from_this(), &context_.shared->calls,
                                     number_, request_.Take(), std::move(account_));
  }
  return call_.get();
}

void GrpcStream::AddDue(StreamCall* call) {
  if (context_.due.empty() || context_.due.back().get() != call) context_.due.push_back(call_);
}

// A client that does not read its answers is not read any further: each message may cause an answer
// that is much longer. Its next messages wait until it has read (OnDataSent).
bool GrpcStream::TakeMessage(base::ChargedText* message, bool* is_end) {
  resumes_reading_ = reply_.waiting_count() > 0;
  if (resumes_reading_) return false;
  *is_end = request_.has_ended() && !request_.has_messages();
  if (!request_.has_messages()) return false;
  *message = request_.TakeNext();
  return true;
}

// --- The answer ---

bool GrpcStream::Send(std::shared_ptr<OutMessage> message, size_t waiting_max) {
  if (reply_.waiting_count() >= waiting_max) return false;
  reply_.Add(std::move(message), context_.now_ns);
  SubmitBody();
  return true;
}

void GrpcStream::Answer(CallEnd end) {
  is_answered_ = true;
  if (call_ != nullptr) call_->MarkAnswered();
  reply_.End(std::move(end), context_.now_ns);
  context_.answered.push_back(number_);
  if (reply_.waiting_count() > 0 || reply_.is_begun()) return SubmitBody();
  context_.session->Submit(number_, reply_.HeadersWithEnd());
}

void GrpcStream::Refuse(const base::Status& status) {
  if (request_.method() == nullptr) {
    request_.headers()->Free();
  } else {
    MakeCall()->RefuseArriving(status.code());
  }
  CallEnd end;
  end.status = status;
  Answer(std::move(end));
}

void GrpcStream::RefuseHeaders(int http_status) {
  is_answered_ = true;
  request_.headers()->Free();
  const std::string text = std::to_string(http_status);
  HeaderList headers;
  headers.Add(":status", text);
  context_.session->Submit(number_, headers);
}

void GrpcStream::SubmitBody() {
  if (reply_.is_begun()) return context_.session->Resume(number_);
  reply_.MarkBegun();
  context_.session->Submit(number_, reply_.Headers(), &reply_);
}

void GrpcStream::OnDataSent() {
  reply_.NoteSent(context_.now_ns);
  if (reply_.waiting_count() == 0 && std::exchange(resumes_reading_, false)) AddDue(call_.get());
}

// --- Its end, and its limits ---

void GrpcStream::Close() {
  if (call_ != nullptr) call_->Close(context_.now_ns);
}

void GrpcStream::CountUnread() {
  if (account()->open_bytes() == 0) account()->SetOpenBytes(kStreamBytes);
}

bool GrpcStream::IsReceiving(int64_t since_ns) const {
  return !is_answered_ && request_.is_arriving(since_ns);
}

bool GrpcStream::EndIfPaused(int64_t since_ns) {
  if (reply_.is_left_unread(since_ns)) {
    context_.session->Reset(number_, ResetReason::kCancelled);
    return true;
  }
  if (is_answered_ || !request_.is_paused(since_ns)) return false;
  const int64_t pause_seconds = context_.shared->limits.pause_ns / WireLimits::kSecondNs;
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
