#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "native/tf/kernel_watch.h"
#include "native/tf/state_keeper.h"

namespace millpond::tf {

// Watches what the runs of one model write to its variables, if its graph has nodes that may.
//
// A model may assign in each call the value that it has just read, as exports of Keras on JAX do
// with the averages of a batch normalization. Such a call changes no answer. The graph does not
// show that, because the value goes through a compiled program. So each assignment is compared with
// the variable just before it is made.
//
// A run that may not write (RunContext::may_write) ends before a kernel that would change a
// variable, and so changes nothing. Between KeepState and PutBackState it may write, as long as a
// StateKeeper can put it back.
//
// Thread: any may call IsDone and has_changed. KeepState and PutBackState are for the loader, while
// nothing runs.
class WriteWatch final : public KernelWatch {
 public:
  // Looks at a kernel that is about to be computed. Returns true if it need not be computed,
  // because the variable has the value already. Sets PERMISSION_DENIED in `context` if the run
  // may not write, and the kernel may.
  bool IsDone(const tensorflow::OpKernel& kernel, bool may_write,
              tensorflow::OpKernelContext* context) override;

  // True once a run has changed a variable, or would have. Never false again.
  bool has_changed() const { return has_changed_.load(std::memory_order_relaxed); }

  // From now on keeps the values of variables before runs write to them, up to `bytes_max`
  // together. `written` is for StateKeeper.
  void KeepState(size_t bytes_max, const std::optional<std::set<std::string>>& written) {
    keeper_ = std::make_unique<StateKeeper>(bytes_max, written);
  }
  bool keeps_state() const { return keeper_ != nullptr; }
  size_t kept_bytes() const { return keeper_ == nullptr ? 0 : keeper_->bytes(); }
  // Puts the values back and ends KeepState. Returns the number of variables.
  size_t PutBackState();

 private:
  std::unique_ptr<StateKeeper> keeper_;  // null unless the state is kept
  std::atomic<bool> has_changed_{false};
};

}  // namespace millpond::tf
