#pragma once

#include <atomic>
#include <cstdint>

namespace millpond::tf {

// What the control plane tells a running load, and hears of it. Any thread.
struct LoadControl {
  // The load stops at the next piece of a tensor, or kernel, and ends CANCELLED.
  std::atomic<bool> is_cancelled{false};
  // How fast restore may read; 0: as fast as it can. Looked at between two pieces of a tensor.
  std::atomic<int64_t> restore_bytes_per_second_max{0};
  // Tensor bytes that lie in the version's memory, checked.
  std::atomic<int64_t> restored_bytes{0};
};

// While it lives, the restore kernel that runs on this thread obeys `control`. Restore runs inline,
// on the loader's thread, so a thread-local is enough to find it.
class LoadScope {
 public:
  explicit LoadScope(LoadControl* control) : outer_(current_) { current_ = control; }
  ~LoadScope() { current_ = outer_; }
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;

  // Null outside a load.
  static LoadControl* Current() { return current_; }

 private:
  static inline thread_local LoadControl* current_ = nullptr;
  LoadControl* const outer_;
};

}  // namespace millpond::tf
