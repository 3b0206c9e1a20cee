#include "native/rpc/model_method.h"

#include <memory>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/request_trace.h"

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

// A request that a reservoir wants. Holds the reservoir, because the version's handle is released
// before the request is copied.
struct WantedRequest {
  std::shared_ptr<servable::RequestReservoir> reservoir;  // null: no reservoir wants it
  servable::RequestKind kind;
};

WantedRequest FindWhoWants(const servable::ServableHandle& handle,
                           const std::optional<servable::RequestKind>& kind, bool is_joint,
                           int64_t now_ns) {
  if (!kind) return {};
  servable::RequestReservoir* const asked =
      is_joint ? handle.reservoir()->joint() : handle.reservoir().get();
  if (!asked->Wants(*kind, now_ns)) return {};
  return {{handle.reservoir(), asked}, *kind};
}

}  // namespace

Status ModelCall::Pin(const std::optional<inference::ModelSpec>& spec, CanaryShare share) {
  MILLPOND_RETURN_IF_ERROR(inference::CheckModelSpec(spec));
  const CallMetadata metadata(call_);
  const auto choice =
      inference::ToVersionChoice(*spec, share == CanaryShare::kMayAnswer ? &metadata : nullptr);
  auto found = map_->LookUp(spec->name, choice);
  if (found.status().code() == base::Code::kUnavailable && !map_->Refuses(spec->name)) {
    // A second look-up finds a version that came between the first look-up and the mark.
    awaited_change_ = map_->MarkChange(spec->name);
    found = map_->LookUp(spec->name, choice);
  }
  if (found.status().code() != base::Code::kUnavailable) awaited_change_.reset();
  if (!found.ok()) {
    unmatched_model_ = spec->name;
    return found.status();
  }
  handle_ = std::move(found.value());
  return call_.CheckIsWanted();
}

Status ModelCall::SetReply(base::StatusOr<base::ReplyBytes> reply) {
  if (reply.ok()) reply_ = std::move(reply.value());
  return reply.status();
}

void ModelCall::OfferToReservoir(std::string_view signature_name,
                                 const tensor::OutputSet& outputs) {
  if (handle_.reservoir() == nullptr) return;
  kind_.emplace(signature_name, outputs, request().remaining_bytes(),
                handle_.reservoir()->keeps_each_size());
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

void ModelMethod::Handle(Call* call) {
  RequestTrace trace(parts_.spans, method_);
  ModelCall model_call(call, parts_.map);
  model_call.watch_.Enter(metrics::Phase::kDecode, base::MonotonicNs());
  const Status answer = Answer(&model_call);
  const std::optional<servable::AwaitedChange>& awaited = model_call.awaited_change_;
  if (awaited && call->TryAwait(*awaited)) return;
  const Status status = call->AsSeenByClient(answer);
  const int64_t now_ns = base::MonotonicNs();
  const metrics::PhaseTimes& times = model_call.watch_.End(now_ns);
  const bool is_matched{model_call.handle_};
  metrics::RequestRecorder& requests =
      is_matched ? model_call.handle_.requests()
                 : parts_.statistics->Unmatched(model_call.unmatched_model_);
  requests.Of(method_).Record(status.code(), times);
  trace.End(model_call.handle_, model_call.unmatched_model_, times, now_ns);
  const WantedRequest wanted =
      status.ok() ? FindWhoWants(model_call.handle_, model_call.kind_, model_call.is_joint_, now_ns)
                  : WantedRequest();
  model_call.handle_ = {};
  const size_t reply_bytes = status.ok() ? model_call.reply_.size() : 0;
  if (status.ok()) {
    call->Reply(std::move(model_call.reply_));
  } else {
    call->Fail(status);
  }
  trace.Offer(*call, status, reply_bytes);
  if (wanted.reservoir) wanted.reservoir->Take(wanted.kind, call->request(), now_ns);
  if (status.ok()) model_call.samples_.Give(now_ns);
}

}  // namespace millpond::rpc
