#include "native/rpc/stream_call.h"

#include <string>
#include <utility>

#include "native/base/clock.h"

namespace millpond::rpc {

bool StreamCall::Arrive() {
  if (takes_many()) {
    ArriveMessages();
    return false;
  }
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

void StreamCall::ArriveMessages() {
  base::ChargedText message;
  bool is_end = false;
  while (carrier_->TakeMessage(stream_, &message, &is_end)) {
    headers_.Free();
    shown_ = message.text;
    method_->handler->Handle(this);
    shown_.reset();
  }
  if (is_end) method_->handler->HandleEnd(this);
}

base::Status StreamCall::Enter() {
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

void StreamCall::RefuseArriving(base::Code code) {
  RecordRefusal(code);
  // The messages of a stream may be in use on another thread, so they are not freed here.
  if (!takes_many()) FreeRequest();
}

void StreamCall::Close(int64_t now_ns) {
  if (!is_over_.exchange(true)) cancellation_.Cancel(now_ns);
  // It may have counted as open for an answer that its client did not read.
  if (message_.options().is_of_model) account_.SetOpenBytes(0);
}

}  // namespace millpond::rpc
