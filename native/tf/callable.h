#pragma once

#include <vector>

#include "native/base/status.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {

// A signature as a function that runs on the calling thread.
//
// It is a Session callable with inter_op_thread_pool = -1: no hand-over to a pool and no look-up in
// the session's executor cache, which also leaks an entry for every order of feeds (tf-serving.md,
// part 2). 18,400 to 12,600 requests a second at one row (design.md, seam 7).
class Callable {
 public:
  // Prunes and optimizes the graph: 50 to 60 ms for the CTR model. `session` must outlive it. Where
  // it cannot be made, Run answers with the reason.
  Callable(tensorflow::Session* session, const Signature& signature);
  ~Callable();
  Callable(const Callable&) = delete;
  Callable& operator=(const Callable&) = delete;

  // OK, or why it could not be made.
  const base::Status& made() const { return made_; }

  base::Status Run(const TensorList& inputs, TensorList* outputs) const;

 private:
  // Where an output comes from: a fetched tensor, or, where a signature hands an input through,
  // that input (a session refuses to fetch what is fed).
  struct OutputSource {
    bool is_input = false;
    size_t index = 0;
  };

  tensorflow::Session* session_;
  tensorflow::Session::CallableHandle handle_ = 0;
  std::vector<OutputSource> output_sources_;
  base::Status made_;
};

}  // namespace millpond::tf
