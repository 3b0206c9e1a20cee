#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "native/servable/prepared_run.h"
#include "native/servable/request_log.h"
#include "native/servable/servable_entry.h"
#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// The run of one request that its model's log has sampled, kept from the run until the reply is
// written. It becomes one PredictionLog for each signature that it ran, with a predict_log,
// whatever protocol the request came by: so each record is a request that a warm-up can repeat, and
// the answer to it.
//
// Thread: the request's.
class RunLog {
 public:
  // Keeps a run that has succeeded if `log` samples it; null: there is none. The run's results are
  // not encoded yet. Cost: that of RequestLog::Sample; if the run is kept, also a reference to each
  // input and output.
  void Keep(const servable::PreparedRun& run, const std::shared_ptr<servable::RequestLog>& log);
  // True from a Keep that was sampled until Give or Discard.
  bool is_kept() const { return log_ != nullptr; }

  // Pins the version, whose memory the run's outputs may be, until Give or Discard.
  void Hold(servable::ServableHandle handle) { handle_ = std::move(handle); }
  // Queues the records, and releases the version. Call it once the reply is written. `trace_id` has
  // 32 hexadecimal digits; "" if the client named no trace.
  //
  // Cost: one copy of the inputs and the outputs that are logged, into the queue; two small
  // allocations for each signature, and none that grows with the tensors.
  void Give(int64_t received_ns, int64_t latency_ns, std::string_view trace_id);
  // Forgets the run, because its reply is an error.
  void Discard();

 private:
  struct Run {
    const tensor::Signature* signature;
    tensor::OutputSet outputs;  // in `results`
    tensor::TensorList results;
  };

  void GiveRun(Run* run, const servable::LoggedRequest& request);

  std::shared_ptr<servable::RequestLog> log_;
  const servable::RequestLogSettings* settings_ = nullptr;  // of log_, which keeps them
  servable::ServableHandle handle_;                         // outlives the tensors below
  tensor::TensorList inputs_;
  std::vector<Run> runs_;
};

}  // namespace millpond::inference
