#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/byte_budget.h"
#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/inference/model_spec.h"
#include "native/inference/prepared.h"
#include "native/inference/run_log.h"
#include "native/inference/run_samples.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/request_statistics.h"
#include "native/metrics/span_buffer.h"
#include "native/rpc/request_trace.h"
#include "native/rpc/runnable_call.h"
#include "native/servable/batch_queue.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// The objects that all methods of this kind share. Borrows all.
struct ModelMethodParts {
  servable::ServingMap* map = nullptr;
  // Records the requests that reached no version. All other requests are recorded by their version.
  const metrics::RequestStatistics* statistics = nullptr;
  // Takes the requests whose trace is sampled; null: nothing is traced.
  metrics::SpanBuffer* spans = nullptr;
};

// States if a model's canary may answer a request that names no version or label.
enum class CanaryShare { kMayAnswer, kNever };

class ModelMethod;

// One request to a version, from the bytes of the request to the bytes of the reply.
//
// Thread: one at a time. Owner: the thread that answers it.
class ModelCall final : public servable::WaitingRequest {
 public:
  // Borrows the method and all that it borrows.
  ModelCall(std::shared_ptr<RunnableCall> call, const ModelMethod& method);

  // --- servable::WaitingRequest ---

  servable::PreparedRun* Prepare() override;
  void Finish() override;
  void Send() override;
  // Offers the request to its trace and to the model's reservoir and log.
  void Offer() override;

  // --- for ModelMethod::Prepare ---

  const std::string& target() const { return call_->target(); }
  std::optional<std::string_view> FindMetadata(std::string_view key) const {
    return call_->FindMetadata(key);
  }
  std::string* http_fields() { return call_->http_fields(); }
  base::ByteBudget::Share* decoded() { return &decoded_; }
  base::WireReader request() const { return call_->request(); }
  const tensor::RunContext& run_context() const { return call_->run_context(); }
  metrics::PhaseWatch* watch() { return &watch_; }

  // Pins the version that `spec` means, until ModelMethod has recorded the request. Called once,
  // before servable(). INVALID_ARGUMENT and NOT_FOUND as CheckModelSpec and ServingMap::LookUp
  // return them. CANCELLED and DEADLINE_EXCEEDED if the client waits for no answer any more.
  // UNAVAILABLE if the model's first version is being loaded; then the call may wait for it.
  base::Status Pin(const std::optional<inference::ModelSpec>& spec,
                   CanaryShare share = CanaryShare::kMayAnswer);
  const servable::Servable& servable() const { return *handle_; }

  // The run of the request, and the encoding of its reply. Prepare sets it, or calls SetReply.
  inference::Prepared<base::ReplyBytes>* prepared() { return &prepared_; }
  // Sets the reply of a request that needs no run. Returns the status of `reply`.
  base::Status SetReply(base::StatusOr<base::ReplyBytes> reply);

  // Offers the request's bytes, which are a PredictRequest, to the model's RequestReservoir, if it
  // has one. The reservoir takes them after the answer is written. The model's log may take the
  // run.
  void OfferToReservoir(std::string_view signature_name, const tensor::OutputSet& outputs);
  // The same for a request that runs these signatures as one; to RequestReservoir::joint.
  void OfferToJointReservoir(std::string_view signature_names);
  // Offers the run to the reservoir, as the PredictRequest that runs the same. The model's log may
  // take it, too.
  void OfferRun() { offers_run_ = may_be_logged_ = true; }

 private:
  // Records the request, releases the version unless the request is logged, and answers with the
  // reply or an error.
  void End(const base::Status& answer);

  const std::shared_ptr<RunnableCall> call_;
  const ModelMethod& method_;
  RequestTrace trace_;
  metrics::PhaseWatch watch_;
  base::ByteBudget::Share decoded_;  // what the request decodes to
  servable::ServableHandle handle_;
  std::string unmatched_model_;  // that the request asked for and did not reach
  // Set if the request asked for its model's first version, and that version is loading.
  std::optional<servable::AwaitedChange> awaited_change_;
  inference::Prepared<base::ReplyBytes> prepared_;
  // The reply, which is sent without a copy. It counts in the server's budget until it was sent.
  base::ReplyBytes reply_;
  std::optional<servable::RequestKind> kind_;  // of bytes that a reservoir may take
  bool is_joint_ = false;                      // the reservoir is RequestReservoir::joint
  bool offers_run_ = false;
  inference::RunSamples samples_;
  bool may_be_logged_ = false;
  inference::RunLog run_log_;
  // Set by End, for Offer.
  base::Status status_;
  size_t reply_bytes_ = 0;
  int64_t ended_ns_ = 0;
  std::shared_ptr<servable::RequestReservoir> reservoir_;  // takes the request; null: none does
};

// A method that a version answers, on the thread that serves the request. It calls no Python, and
// holds no lock while it computes. ModelCall does the work that all such methods share. It times
// the phases of a request, records the request under its Method in the version that it reached,
// traces it, and offers it to the model's reservoir and log. It records the request before the
// answer is sent, so that a client that has its answer finds the request counted. It also releases
// the version before that, unless the request is logged.
//
// Thread: request threads, several at once, each with a call of its own. Cost: two virtual calls
// beside Prepare; allocates the ModelCall and the reply's buffer.
class ModelMethod : public ModelHandler {
 public:
  ModelMethod(metrics::Method method, const ModelMethodParts& parts)
      : method_(method), parts_(parts) {}

  std::unique_ptr<servable::WaitingRequest> MakeRequest(std::shared_ptr<RunnableCall> call) final;
  // Returns the name in the ModelSpec that most requests have as their field 1.
  std::string ModelNameOf(const Call& call) const override;
  // Returns the key of the model and the signature in that ModelSpec.
  servable::BatchKey BatchKeyOf(const Call& call) const override;
  void RecordRefusal(const Call& call, base::Code code) const final;

 protected:
  friend class ModelCall;

  bool HasModel(std::string_view name) const final { return parts_.map->Has(name); }
  // Decodes the request's envelope, pins the version, and sets either what is to be run
  // (ModelCall::prepared) or the reply. `call` is in Phase::kDecode. Called by several threads at
  // once.
  virtual base::Status Prepare(ModelCall* call) const = 0;

 private:
  const metrics::Method method_;
  const ModelMethodParts parts_;
};

}  // namespace millpond::rpc
