#include "native/rpc/call.h"

#include <algorithm>

#include "native/base/clock.h"
#include "native/rpc/http_answer.h"
#include "native/rpc/incoming_request.h"

namespace millpond::rpc {
namespace {

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
           ArrivedRequest arrived, CallAccount account)
    : carrier_(std::move(carrier)),
      limits_(limits),
      stream_(stream),
      account_(std::move(account)),
      arrived_(std::move(arrived)) {
  std::optional<int64_t> timeout_ns = arrived_.headers().timeout_ns();
  has_servers_deadline_ = !timeout_ns && arrived_.is_of_model() && limits_->request_ns_max > 0;
  if (has_servers_deadline_) timeout_ns = limits_->request_ns_max;
  if (timeout_ns) run_.deadline_ns = arrived_.received_ns() + *timeout_ns;
  run_.is_cancelled = cancellation_.flag();
  run_.reply_bytes_max = limits_->reply_bytes_max;
  run_.budget = limits_->budget.get();
}

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
                              EarliestDeadlineNs(run_.deadline_ns, received_ns()));
}

void Call::SendHeld() {
  if (std::exchange(holds_answer_, false)) carrier_->WriteAnswers();
}

void Call::ReplyHttp(std::shared_ptr<HttpAnswer> answer) {
  CallEnd end;
  end.http = std::move(answer);
  End(std::move(end));
}

void Call::Reply(base::ReplyBytes reply) {
  if (is_http()) {
    auto answer = std::make_shared<HttpAnswer>();
    answer->fields = std::move(http_fields_);
    answer->body = std::move(reply);
    return ReplyHttp(std::move(answer));
  }
  CallEnd end;
  end.encoding = ChooseReplyEncoding(limits_->reply_compression, arrived_.headers().encoding(),
                                     arrived_.headers().accepted_encodings(), reply.size());
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
  limits.use = UseOf(static_cast<int64_t>(bytes.size()), arrived_.is_of_model());
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
  end.http_fields = std::move(http_fields_);
  if (has_servers_deadline_ && status.code() == base::Code::kDeadlineExceeded) {
    end.status = {status.code(), status.message() + " (" + limits_->request_flag + ")"};
  }
  End(std::move(end));
}

// Ends the call, which does not count as in flight from then on. Two threads may end a call without
// a ticket at once, so a ticket is written only if it is there.
void Call::End(CallEnd end) {
  end.is_held = holds_answer_;
  if (ticket_) ticket_ = {};
  carrier_->Answer(stream_, std::move(end));
}

void Call::Send(std::string_view bytes) {
  auto message = MakeMessage(bytes);
  if (!message.ok()) return Fail(message.status());
  if (!carrier_->Send(stream_, std::move(message.value()), IncomingRequest::kUnreadMessagesMax)) {
    Fail({base::Code::kResourceExhausted, std::to_string(IncomingRequest::kUnreadMessagesMax) +
                                              " messages wait for the client to read them"});
  }
}

}  // namespace millpond::rpc
