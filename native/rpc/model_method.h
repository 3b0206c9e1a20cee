#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/model_spec.h"
#include "native/inference/run_samples.h"
#include "native/metrics/request_phases.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/request_statistics.h"
#include "native/metrics/span_buffer.h"
#include "native/rpc/call.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// What the methods that a version answers have in common. Borrows all.
struct ModelMethodParts {
  servable::ServingMap* map = nullptr;
  // Records the requests that reached no version; the others are recorded by the version that they
  // reached.
  const metrics::RequestStatistics* statistics = nullptr;
  // Takes the requests whose trace is sampled; null: nothing is traced.
  metrics::SpanBuffer* spans = nullptr;
};

// Whether a request may be one of those that a model's canary answers.
enum class CanaryShare { kMayAnswer, kNever };

// One request to a version, from its bytes to its reply's: what ModelMethod::Answer works on. On
// the stack of the call's thread.
class ModelCall {
 public:
  // Borrows both.
  ModelCall(const Call* call, servable::ServingMap* map)
      : call_(*call), map_(map), watch_(call->received_ns()) {}
  ModelCall(const ModelCall&) = delete;
  ModelCall& operator=(const ModelCall&) = delete;

  base::WireReader request() const { return call_.request(); }
  const tensor::RunContext& run_context() const { return call_.run_context(); }
  metrics::PhaseWatch* watch() { return &watch_; }

  // Pins the version that `spec` means, for as long as this lives or until ModelMethod has recorded
  // the request. Once, before servable(). INVALID_ARGUMENT and NOT_FOUND as CheckModelSpec and
  // ServingMap::LookUp say; CANCELLED and DEADLINE_EXCEEDED where nobody waits for an answer.
  // UNAVAILABLE, after which the call may wait, if it is the first version and is being loaded.
  base::Status Pin(const std::optional<inference::ModelSpec>& spec,
                   CanaryShare share = CanaryShare::kMayAnswer);
  const servable::Servable& servable() const { return *handle_; }
  // The same for a request that is no PredictRequest: what it runs is offered to the model's
  // RequestReservoir, if it has one.
  inference::SampledServable sampled_servable() {
    return {*handle_, handle_.reservoir(), call_.received_ns(), &samples_};
  }

  // The reply goes to the network as it is, and counts in the server's budget until it was sent.
  // Returns the status of `reply`.
  base::Status SetReply(base::StatusOr<base::ReplyBytes> reply);

  // Lets the model's RequestReservoir, if it has one, take the request's bytes, which are a
  // PredictRequest's, once it is answered.
  void OfferToReservoir(std::string_view signature_name, const tensor::OutputSet& outputs);
  // The same for a request that runs these signatures as one, to RequestReservoir::joint.
  void OfferToJointReservoir(std::string_view signature_names);

 private:
  friend class ModelMethod;

  const Call& call_;
  servable::ServingMap* const map_;
  metrics::PhaseWatch watch_;
  servable::ServableHandle handle_;
  std::string unmatched_model_;  // asked for, and not reached
  // Set if the version that was asked for is the first of its model and loading.
  std::optional<servable::AwaitedChange> awaited_change_;
  base::ReplyBytes reply_;
  std::optional<servable::RequestKind> kind_;  // of bytes that a reservoir may take
  bool is_joint_ = false;                      // whether that is RequestReservoir::joint
  inference::RunSamples samples_;
};

// A method that a version answers, inline on the thread that serves it: no lock, no Python, no
// hand-over. What is the same for all of them is here: a request is timed by phases, recorded by
// the version that it reached under its Method, however it ends, traced, and offered to the model's
// reservoir. The version is let go, and the request recorded, before the answer is sent: who has it
// finds it counted.
//
// Cost: what it adds to Answer is one virtual call; no allocation but the reply's buffer.
class ModelMethod : public MethodHandler {
 public:
  ModelMethod(metrics::Method method, const ModelMethodParts& parts)
      : method_(method), parts_(parts) {}

  void Handle(Call* call) final;
  bool IsLimited() const final { return true; }
  // Of the ModelSpec that most requests have as their field 1.
  std::string ModelNameOf(const Call& call) const override;
  void RecordRefusal(const Call& call, base::Code code) const final;

 protected:
  // Decodes the request's envelope, pins the version, computes and sets the reply. `call` is in
  // Phase::kDecode; whoever answers enters the later ones. On any thread, at once.
  virtual base::Status Answer(ModelCall* call) const = 0;

 private:
  const metrics::Method method_;
  const ModelMethodParts parts_;
};

}  // namespace millpond::rpc
