#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "native/base/status.h"
#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"
#include "native/tf/direct_run.h"
#include "native/tf/fetch_plan.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {

// A function that computes some outputs of a signature on the calling thread.
//
// It is a Session callable with inter_op_thread_pool = -1. So a run is not handed over to a pool.
// It also avoids the session's executor cache, which keeps an entry for every order of feeds until
// the session closes (DirectSession::GetOrCreateExecutors). Measured at one row: 18,400 requests a
// second, and 12,600 on the default pool (docs/design.md, "Run inline").
//
// If its graph runs in a fixed order, all runs but the first are beside the session (DirectRun).
class Callable {
 public:
  // Makes the callable, which prunes and optimizes the graph: 50 to 60 ms for the CTR model. The
  // first run is slow too. `session` must outlive it. If the callable cannot be made, Run returns
  // the reason.
  //
  // Other runs of the session continue meanwhile. The graph is prepared under a lock that only
  // makers take (graph_state_lock_). The lock that runs share (callables_lock_) is held only for
  // the insertion.
  Callable(tensorflow::Session* session, const tensor::Signature& signature,
           const tensor::OutputSet& outputs);
  ~Callable();
  Callable(const Callable&) = delete;
  Callable& operator=(const Callable&) = delete;

  // OK, or the reason why the callable could not be made.
  const base::Status& made() const { return made_; }

  // Runs the callable. Leaves `result` unchanged if it fails. Any number of threads at the same
  // time.
  base::Status Run(const tensor::TensorList& inputs, tensor::TensorList* result) const;

 private:
  absl::Status RunGraph(const std::vector<tensorflow::Tensor>& fed,
                        std::vector<tensorflow::Tensor>* fetched) const;
  bool IsOfSession() const { return made_.ok() && !plan_.IsHandedThrough(); }

  tensorflow::Session* const session_;
  const FetchPlan plan_;
  tensorflow::Session::CallableHandle handle_ = 0;
  base::Status made_;
  std::unique_ptr<const DirectRun> direct_;  // null: each run is the session's
};

}  // namespace millpond::tf
