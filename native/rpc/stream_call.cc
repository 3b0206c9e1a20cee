#include "native/rpc/stream_call.h"

#include <string>
#include <utility>

#include "native/base/clock.h"
#include "native/base/share_scope.h"

namespace millpond::rpc {

bool StreamCall::Arrive() {
  return std::visit([this](auto* handler) { return ArriveAt(handler); },
                    arrived().method().handler);
}

bool StreamCall::ArriveAt(CallHandler* handler) {
  if (is_over()) return false;
  mutable_arrived()->set_received_ns(base::MonotonicNs());
  if (ReadOrEnd()) {
    base::ByteBudget::Share decoded(run_context().budget);
    const base::ShareScope share_scope(&decoded, run_context().reply_limits());
    handler->Handle(this);
  }
  // Whoever answers later has what is needed for it.
  FreeRequest();
  return false;
}

bool StreamCall::ArriveAt(StreamingHandler* handler) {
  base::ChargedText message;
  bool is_end = false;
  while (TakeMessage(&message, &is_end)) {
    mutable_arrived()->FreeHeaders();
    mutable_arrived()->Showing(message.text, [&] { handler->HandleMessage(this); });
  }
  if (is_end) handler->HandleEnd(this);
  return false;
}

bool StreamCall::ArriveAt(ModelHandler*) {
  if (is_over()) return false;
  mutable_arrived()->set_received_ns(base::MonotonicNs());
  const base::Status entered = Enter();
  if (!entered.ok()) Refuse(entered);
  return entered.ok();
}

base::Status StreamCall::Enter() {
  servable::Admission& admission = *limits().admission;
  std::string model;
  // A message that cannot be read is no model's; it fails in its turn.
  if (admission.has_model_limits()) {
    // The start of a compressed message has the name, unless its client wrote its fields in an
    // unusual order. The rest is decompressed in its turn, on the thread that runs it.
    model = ModelName();
    if (model.empty() && mutable_arrived()->Read().ok()) model = PeekModelName();
    mutable_arrived()->ForgetRead();
  }
  auto entered = admission.Enter(model);
  if (entered.ok()) SetInFlight(std::move(entered.value()));
  return entered.status();
}

void StreamCall::RefuseArriving(base::Code code) {
  RecordRefusal(code);
  // The messages of a stream may be in use on another thread, so they are not freed here.
  if (!arrived().method().takes_many()) FreeRequest();
}

void StreamCall::Close(int64_t now_ns) {
  if (SetOver()) Cancel(now_ns);
  // It may have counted as open for an answer that its client did not read.
  if (arrived().is_of_model()) account()->SetOpenBytes(0);
}

}  // namespace millpond::rpc
