#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tensorflow {
class DeviceMgr;
class Session;
class Tensor;
}  // namespace tensorflow

namespace millpond::tf {

class InOrderExecutor;

// Runs the graph of a callable as Session::RunCallable does, but beside the session.
//
// Theory of operation. RunCallable takes mutexes of the session and of TensorFlow's statistics in
// each run, looks the callable up, and counts the run, its time and the bytes of its tensors
// (docs/figures.md, "Writes of a run"). All runs write to these cache lines, so on many cores
// they wait for one another. A run in a fixed order needs only its executor, its tensors, and some
// parts that are the same in each run. The executor learns the session's parts from the first run,
// which is the session's.
//
// Thread: any number of threads at the same time. Lifetime: within the life of the callable.
class DirectRun {
 public:
  // Borrows both. `executor` is the only executor of a callable of `session` that fetches
  // `fetches`.
  DirectRun(InOrderExecutor* executor, tensorflow::Session* session,
            std::vector<std::string> fetches);

  // False until a run of the session has shown its parts.
  bool IsReady() const;

  // Runs the graph. The tensors of `fed` are in the order of the callable's feeds, and as many.
  // `fetched` has a place for each of its fetches. Returns the status that RunCallable would.
  absl::Status Run(const std::vector<tensorflow::Tensor>& fed,
                   std::vector<tensorflow::Tensor>* fetched) const;

 private:
  InOrderExecutor* const executor_;
  const std::vector<std::string> fetches_;
  const tensorflow::DeviceMgr* devices_ = nullptr;  // of the session
};

}  // namespace millpond::tf
