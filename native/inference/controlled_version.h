#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/inference/batch_verifier.h"
#include "native/servable/batching_servable.h"
#include "native/servable/servable_entry.h"
#include "native/tensor/run_context.h"

namespace millpond::inference {

// A loaded version in the hands of the control plane: it answers requests that no client waits for
// (warm-ups and gates), decides which of its signatures are batched, and ends. Requests of clients
// do not come here: they find the entry in the serving map.
//
// Thread: any, all methods. A method that needs the version pins it, so that another thread's
// Destroy fails meanwhile. It returns FAILED_PRECONDITION if the version is retired or destroyed.
class ControlledVersion {
 public:
  // `batching` is the servable of `entry` if its requests may share runs; otherwise null. A request
  // that is answered here runs for `run_ns_max` at most.
  ControlledVersion(std::shared_ptr<servable::ServableEntry> entry,
                    const servable::BatchingServable* batching,
                    int64_t run_ns_max = tensor::RunContext::kNoDeadline);
  ControlledVersion(const ControlledVersion&) = delete;
  ControlledVersion& operator=(const ControlledVersion&) = delete;

  const std::shared_ptr<servable::ServableEntry>& entry() const { return entry_; }

  // Pins the version until the handle is dropped.
  base::StatusOr<servable::ServableHandle> Pin() const;
  // FAILED_PRECONDITION if the version is destroyed; a retired version is alive.
  base::Status CheckIsAlive() const;

  // Answers as AnswerRequest does. Before VerifyBatching it also keeps the inputs of the runs, as
  // rows to compare.
  base::StatusOr<std::string> Answer(std::string_view method, std::string_view request,
                                     bool may_write) const;
  // Makes the callable of requests like a serialized PredictRequest.
  base::Status MakeCallable(std::string_view request) const;

  // Decides which signatures are batched (BatchVerifier::Conclude), and then runs the batches that
  // `predecessor` has run most often; null: none. Returns the number of these batches. Does nothing
  // without batching, and at a second call. Ends with CANCELLED after CancelRuns.
  base::StatusOr<int64_t> VerifyBatching(bool may_write_variables,
                                         const ControlledVersion* predecessor);
  // Ends each run of Answer and VerifyBatching at its next kernel, also if it begins later.
  void CancelRuns() { are_runs_cancelled_.store(true); }
  const std::atomic<bool>& are_runs_cancelled() const { return are_runs_cancelled_; }

  // The state of each signature, also after Destroy; empty without batching.
  std::vector<servable::SignatureBatching> Batching() const;
  // The batches that were run most often; none after Destroy.
  std::vector<servable::HotBatch> ListHotBatches() const;

  // Keeps the state of the batches as it is now, and destroys the entry (ServableEntry::Destroy).
  // Changes nothing if the entry refuses.
  base::Status Destroy();

 private:
  VerifierLimits Limits(bool may_write) const;

  const std::shared_ptr<servable::ServableEntry> entry_;
  const int64_t run_ns_max_;
  mutable std::mutex batching_mutex_;
  // The entry's; null without batching, and after Destroy. Guarded by batching_mutex_.
  const servable::BatchingServable* batching_;
  std::vector<servable::SignatureBatching> ended_batching_;  // guarded by batching_mutex_
  // Null without batching, and from VerifyBatching on. Shared with the answers that are under way.
  // Guarded by batching_mutex_.
  std::shared_ptr<BatchVerifier> verifier_;
  std::atomic<bool> are_runs_cancelled_{false};
};

}  // namespace millpond::inference
