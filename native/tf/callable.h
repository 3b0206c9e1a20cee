#pragma once

#include "native/base/status.h"
#include "native/tf/fetch_plan.h"
#include "native/tf/output_set.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {

// Some outputs of a signature as a function that runs on the calling thread.
//
// It is a Session callable with inter_op_thread_pool = -1: no hand-over to a pool and no look-up in
// the session's executor cache, which also leaks an entry for every order of feeds. 18,400 to
// 12,600 requests a second at one row (docs/design.md, "Run inline").
class Callable {
 public:
  // Prunes and optimizes the graph: 50 to 60 ms for the CTR model, and its first run is slow too.
  // `session` must outlive it. Where it cannot be made, Run answers with the reason.
  //
  // Runs of the session go on meanwhile: the graph is prepared under a lock of the session that
  // only makers take (graph_state_lock_), and the lock that runs share (callables_lock_) is held
  // for the insertion alone.
  Callable(tensorflow::Session* session, const Signature& signature, const OutputSet& outputs);
  ~Callable();
  Callable(const Callable&) = delete;
  Callable& operator=(const Callable&) = delete;

  // OK, or why it could not be made.
  const base::Status& made() const { return made_; }

  // `result` is untouched where it fails. Any number of threads at once.
  base::Status Run(const TensorList& inputs, TensorList* result) const;

 private:
  absl::Status RunHandle(const std::vector<tensorflow::Tensor>& inputs,
                         std::vector<tensorflow::Tensor>* fetched) const;
  bool IsOfSession() const { return made_.ok() && !plan_.IsHandedThrough(); }

  tensorflow::Session* const session_;
  const FetchPlan plan_;
  tensorflow::Session::CallableHandle handle_ = 0;
  base::Status made_;
};

}  // namespace millpond::tf
