#include "native/rpc/model_method.h"

#include <memory>
#include <utility>

#include "native/base/clock.h"
#include "native/base/share_scope.h"

namespace millpond::rpc {
namespace {

using base::Status;

class CallMetadata final : public servable::RequestMetadata {
 public:
  explicit CallMetadata(const Call& call) : call_(call) {}
  std::optional<std::string_view> Find(std::string_view key) const override {
    return call_.FindMetadata(key);
  }

 private:
  const Call& call_;
};

// Returns the reservoir that keeps a request; null if none does.
std::shared_ptr<servable::RequestReservoir> FindReservoir(
    const servable::ServableHandle& handle, const std::optional<servable::RequestKind>& kind,
    bool is_joint, int64_t now_ns) {
  if (!kind) return {};
  servable::RequestReservoir* const asked =
      is_joint ? handle.reservoir()->joint() : handle.reservoir().get();
  if (!asked->Wants(*kind, now_ns)) return {};
  return {handle.reservoir(), asked};
}

}  // namespace

ModelCall::ModelCall(std::shared_ptr<RunnableCall> call, const ModelMethod& method)
    : call_(std::move(call)),
      method_(method),
      trace_(method.parts_.spans, method.method_),
      watch_(call_->received_ns()),
      decoded_(call_->run_context().budget) {
  prepared_.run.context = call_->run_context();
  prepared_.run.watch = &watch_;
}

servable::PreparedRun* ModelCall::Prepare() {
  watch_.Enter(metrics::Phase::kDecode, base::MonotonicNs());
  Status prepared;
  {
    const base::ShareScope share_scope(&decoded_, call_->run_context().reply_limits());
    prepared = method_.Prepare(this);
  }
  if (awaited_change_ && call_->TryAwait(*awaited_change_)) return nullptr;
  if (prepared.ok() && prepared_.encode) return &prepared_.run;
  End(prepared);
  Offer();
  return nullptr;
}

void ModelCall::Finish() {
  call_->HoldAnswer();
  Status answer = inference::EndRun(&prepared_.run);
  if (answer.ok()) {
    if (offers_run_) samples_.Keep(prepared_.run, handle_.reservoir(), call_->received_ns());
    if (may_be_logged_) run_log_.Keep(prepared_.run, handle_.request_log());
    answer = prepared_.encode(&prepared_.run, &reply_);
  }
  End(answer);
}

void ModelCall::Send() { call_->SendHeld(); }

void ModelCall::End(const Status& answer) {
  // They may lie in the version's memory.
  prepared_ = {};
  Status status = call_->AsSeenByClient(answer);
  const int64_t now_ns = base::MonotonicNs();
  const metrics::PhaseTimes& times = watch_.End(now_ns);
  metrics::RequestRecorder& requests =
      handle_ ? handle_.requests() : method_.parts_.statistics->Unmatched(unmatched_model_);
  requests.Of(method_.method_).Record(status.code(), times);
  trace_.End(handle_, unmatched_model_, times, now_ns);
  if (status.ok()) reservoir_ = FindReservoir(handle_, kind_, is_joint_, now_ns);
  if (!status.ok()) run_log_.Discard();
  if (run_log_.is_kept()) run_log_.Hold(std::move(handle_));
  handle_ = {};
  ended_ns_ = now_ns;
  reply_bytes_ = status.ok() ? reply_.size() : 0;
  if (status.ok()) {
    call_->Reply(std::move(reply_));
  } else {
    call_->Fail(status);
  }
  status_ = std::move(status);
}

void ModelCall::Offer() {
  trace_.Offer(*call_, status_, reply_bytes_);
  if (reservoir_) reservoir_->Take(*kind_, call_->request(), ended_ns_);
  if (status_.ok()) samples_.Give(ended_ns_);
  if (!run_log_.is_kept()) return;
  const auto trace = FindTraceContext(*call_);
  const int64_t received_ns = call_->received_ns();
  run_log_.Give(received_ns, ended_ns_ - received_ns, trace ? trace->trace_id : "");
}

Status ModelCall::Pin(const std::optional<inference::ModelSpec>& spec, CanaryShare share) {
  MILLPOND_RETURN_IF_ERROR(inference::CheckModelSpec(spec));
  const CallMetadata metadata(*call_);
  const auto choice =
      inference::ToVersionChoice(*spec, share == CanaryShare::kMayAnswer ? &metadata : nullptr);
  servable::ServingMap& map = *method_.parts_.map;
  auto found = map.LookUp(spec->name, choice);
  if (found.status().code() == base::Code::kUnavailable && !map.Refuses(spec->name)) {
    // Looked up again, because a version may have come between the first look-up and the mark.
    awaited_change_ = map.MarkChange(spec->name);
    found = map.LookUp(spec->name, choice);
  }
  if (found.status().code() != base::Code::kUnavailable) awaited_change_.reset();
  if (!found.ok()) {
    unmatched_model_ = spec->name;
    return found.status();
  }
  handle_ = std::move(found.value());
  return call_->CheckIsWanted();
}

Status ModelCall::SetReply(base::StatusOr<base::ReplyBytes> reply) {
  return base::MoveValue(std::move(reply), &reply_);
}

void ModelCall::OfferToReservoir(std::string_view signature_name,
                                 const tensor::OutputSet& outputs) {
  may_be_logged_ = true;
  if (handle_.reservoir() == nullptr) return;
  kind_.emplace(signature_name, outputs, request().remaining_bytes(), handle_->CompilesEachShape());
}

void ModelCall::OfferToJointReservoir(std::string_view signature_names) {
  OfferToReservoir(signature_names, {});
  is_joint_ = true;
}

std::string ModelMethod::ModelNameOf(const Call& call) const {
  return inference::PeekModelName(call.request());
}

servable::BatchKey ModelMethod::BatchKeyOf(const Call& call) const {
  const inference::ModelSpec spec = inference::PeekModelSpec(call.request());
  return servable::BatchKeyOf(spec.name, spec.signature_name);
}

void ModelMethod::RecordRefusal(const Call& call, base::Code code) const {
  const int64_t now_ns = base::MonotonicNs();
  parts_.statistics->Unmatched(ModelNameOf(call))
      .Of(method_)
      .Record(code, metrics::PhaseTimes::OfTotal(now_ns - call.received_ns()));
}

std::unique_ptr<servable::WaitingRequest> ModelMethod::MakeRequest(
    std::shared_ptr<RunnableCall> call) {
  return std::make_unique<ModelCall>(std::move(call), *this);
}

}  // namespace millpond::rpc
