#include "native/rpc/call.h"

#include <algorithm>

#include "native/base/clock.h"
#include "native/base/share_scope.h"

namespace millpond::rpc {
namespace {

// A model's name and what stands before it in a message.
constexpr size_t kModelNameBytes = 1024;

// Returns the earliest instant that can be the client's deadline if it is `deadline_ns` here:
// gRPC's clients round the timeout that they send up to the millisecond and by at most a hundredth.
// The time on the way is not taken off, because no server can know it.
int64_t EarliestDeadlineNs(int64_t deadline_ns, int64_t received_ns) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  if (deadline_ns == tensor::RunContext::kNoDeadline) return deadline_ns;
  return deadline_ns - (deadline_ns - received_ns) / 100 - kMillisecondNs;
}

}  // namespace

Call::Call(std::shared_ptr<CallCarrier> carrier, const CallLimits* limits, int32_t stream,
           IncomingRequest* request, LiveCall live, OpenCallBytes open_bytes)
    : carrier_(std::move(carrier)),
      limits_(limits),
      stream_(stream),
      method_(request->method()),
      live_(std::move(live)),
      open_bytes_(std::move(open_bytes)),
      headers_(request->TakeHeaders()),
      message_(request->TakeMessage()),
      received_ns_(request->begin_ns()) {
  std::optional<int64_t> timeout_ns = headers_.timeout_ns();
  has_servers_deadline_ = !timeout_ns && is_limited() && limits_->request_ns_max > 0;
  if (has_servers_deadline_) timeout_ns = limits_->request_ns_max;
  if (timeout_ns) run_.deadline_ns = received_ns_ + *timeout_ns;
  run_.is_cancelled = cancellation_.flag();
  run_.reply_bytes_max = limits_->reply_bytes_max;
  run_.budget = limits_->budget.get();
}

// --- Its way to a handler ---

bool Call::Arrive() {
  if (is_over()) return false;
  received_ns_ = base::MonotonicNs();
  if (!is_limited()) {
    Handle();
    // Whoever answers later has what is needed for it.
    FreeRequest();
    return false;
  }
  const base::Status entered = Enter();
  if (!entered.ok()) Refuse(entered);
  return entered.ok();
}

void Call::ArriveOne(std::string_view message) {
  headers_.Free();
  shown_ = message;
  method_->handler->Handle(this);
  shown_.reset();
}

void Call::EndTurn() {
  // An answer may take long to read; the request is not needed for that.
  if (!awaited_) return FreeRequest();
  const Awaited awaited = *awaited_;
  awaited_.reset();
  message_.ForgetRead();
  limits_->awaiting->Await(shared_from_this(), awaited.change, awaited.until_ns);
}

// The name stands at the start of a message, as clients write it.
std::string Call::StartOfMessage() const {
  if (message_.is_read() || !message_.is_compressed()) return "";
  return message_.StartOf(kModelNameBytes);
}

std::string Call::ModelName() {
  if (message_.is_read() || !message_.is_compressed()) {
    Read();
    return PeekModelName();
  }
  const std::string start = StartOfMessage();
  shown_ = start;
  std::string name = PeekModelName();
  shown_.reset();
  return name;
}

void Call::PeekBatchKey() {
  if (is_compressed() || servable::BatchingCount().load(std::memory_order_relaxed) == 0) return;
  Read();
  batch_key_ = method_->handler->BatchKeyOf(*this);
}

bool Call::TryAwait(const servable::AwaitedChange& change) {
  const int64_t until_ns =
      servable::AwaitEndNs(received_ns_, limits_->first_version_wait_ns, run_.deadline_ns);
  const bool is_wanted = !cancellation_.is_cancelled();
  if (!ticket_ || !is_wanted || base::MonotonicNs() >= until_ns) return false;
  if (!limits_->awaiting->TakeAwaitingPlace()) return false;
  awaited_ = Awaited{change, until_ns};
  return true;
}

base::Status Call::Enter() {
  servable::Admission& admission = *limits_->admission;
  std::string model;
  // A message that cannot be read is no model's; it fails in its turn.
  if (admission.has_model_limits()) {
    if (message_.Read().ok()) model = PeekModelName();
    message_.ForgetRead();
  }
  auto entered = admission.Enter(model);
  if (entered.ok()) ticket_ = std::move(entered.value());
  return entered.status();
}

void Call::Handle() {
  const base::Status& read = message_.Read();
  if (read.ok()) {
    base::ByteBudget::Share decoded(limits_->budget.get());
    const base::ShareScope share_scope(&decoded, run_.reply_limits());
    return method_->handler->Handle(this);
  }
  RecordRefusal(read.code());
  CallEnd end;
  end.status = read;
  end.names_encodings = read.code() == base::Code::kUnimplemented;
  End(std::move(end));
}

std::unique_ptr<servable::WaitingRequest> Call::MakeRequest() {
  auto request = message_.Read().ok() ? method_->handler->MakeRequest(shared_from_this()) : nullptr;
  if (request == nullptr) Handle();
  return request;
}

void Call::SendHeld() {
  if (std::exchange(holds_answer_, false)) carrier_->WriteAnswers();
}

void Call::Refuse(const base::Status& status) {
  CallEnd end;
  end.status = status;
  // gRPC's own retries wait for so long:
  // https://github.com/grpc/proposal/blob/master/A6-client-retries.md
  end.pushback_ms = limits_->admission->NextPushbackMs();
  // The refusal counts for the model that the request names.
  const std::string start = StartOfMessage();
  if (start.empty()) {
    Read();
  } else {
    shown_ = start;
  }
  RecordRefusal(status.code());
  shown_.reset();
  FreeRequest();
  End(std::move(end));
}

void Call::RefuseArriving(base::Code code) {
  RecordRefusal(code);
  // The messages of a stream may be in use on another thread, so they are not freed here.
  if (!takes_many()) FreeRequest();
}

void Call::FreeRequest() {
  message_.Free();
  headers_.Free();
}

// --- For handlers ---

base::Status Call::CheckIsWanted() const {
  if (limits_->is_cut_short->load(std::memory_order_relaxed)) {
    return {base::Code::kUnavailable,
            "the server stopped before the request ran; use another server"};
  }
  if (cancellation_.is_cancelled()) {
    return {base::Code::kCancelled, "the client cancelled the request before it ran"};
  }
  if (run_.deadline_ns != tensor::RunContext::kNoDeadline &&
      base::MonotonicNs() >= run_.deadline_ns) {
    return {base::Code::kDeadlineExceeded, "the request's deadline passed before it ran"};
  }
  return {};
}

base::Status Call::AsSeenByClient(base::Status status) const {
  return cancellation_.Settle(std::move(status),
                              EarliestDeadlineNs(run_.deadline_ns, received_ns_));
}

void Call::Reply(base::ReplyBytes reply) {
  CallEnd end;
  end.encoding = ChooseReplyEncoding(limits_->reply_compression, headers_.encoding(),
                                     headers_.accepted_encodings(), reply.size());
  if (end.encoding != Encoding::kIdentity) {
    auto compressed = Compress(end.encoding, reply.view(), run_.reply_limits());
    if (compressed.ok()) {
      reply = std::move(compressed.value());
    } else {
      // A reply that cannot be compressed, for lack of memory, is sent as it is.
      end.encoding = Encoding::kIdentity;
    }
  }
  end.message = std::make_shared<OutMessage>(std::move(reply), end.encoding != Encoding::kIdentity);
  End(std::move(end));
}

base::StatusOr<std::shared_ptr<OutMessage>> Call::MakeMessage(std::string_view bytes) const {
  base::ReplyLimits limits;
  limits.budget = limits_->budget.get();
  limits.use = UseOf(static_cast<int64_t>(bytes.size()), message_.options().is_of_model);
  auto copy = base::CopyReply(bytes, limits);
  if (!copy.ok()) return copy.status();
  return std::make_shared<OutMessage>(std::move(copy.value()), false);
}

void Call::Reply(std::string_view bytes) {
  auto message = MakeMessage(bytes);
  if (!message.ok()) return Fail(message.status());
  CallEnd end;
  end.message = std::move(message.value());
  End(std::move(end));
}

void Call::Fail(const base::Status& status) {
  CallEnd end;
  end.status = status;
  if (has_servers_deadline_ && status.code() == base::Code::kDeadlineExceeded) {
    end.status = {status.code(),
                  status.message() + " (--max_request_seconds; the client set no deadline)"};
  }
  End(std::move(end));
}

// Whoever has the answer is not in flight any more.
void Call::End(CallEnd end) {
  end.is_held = holds_answer_;
  ticket_ = {};
  carrier_->Answer(this, std::move(end));
}

void Call::Send(std::string_view bytes) {
  auto message = MakeMessage(bytes);
  if (!message.ok()) return Fail(message.status());
  if (!carrier_->Send(this, std::move(message.value()), IncomingRequest::kUnreadMessagesMax)) {
    Fail({base::Code::kResourceExhausted, std::to_string(IncomingRequest::kUnreadMessagesMax) +
                                              " messages wait for the client to read them"});
  }
}

}  // namespace millpond::rpc
