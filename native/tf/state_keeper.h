#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/refcount.h"

namespace tensorflow {
class OpKernel;
class OpKernelContext;
}  // namespace tensorflow

namespace millpond::tf {

// Keeps the values of variables during the warm-up of a version, to put them back before a client
// sees the version.
//
// Before a kernel writes, each of its variables gets a copy of its value to write to, and the
// tensor itself is kept here. So the tensor stays in the memory of the load, and the kernel cannot
// write to it, whatever way it writes. A variable that no node writes costs nothing, also if a
// compiled call takes it beside a variable that it writes.
//
// Thread: any may call Keep and Lose. PutBack is for the loader, while nothing runs.
class StateKeeper {
 public:
  // The variables that are written may have `bytes_max` together. `written` are the names of all
  // that may be; without them, each variable that a writing kernel takes may be. Borrows them.
  StateKeeper(size_t bytes_max, const std::optional<std::set<std::string>>& written)
      : bytes_max_(bytes_max), written_(written) {}

  // Keeps the values of all variables that a kernel, which is about to be computed, may change.
  // Returns the reason if it may change anything else, or if it would take too much memory.
  absl::Status Keep(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);

  // Gives up, because a run changes something that Keep has refused with `why`, and the rest of the
  // state would not fit to it. From now on Keep returns `why`, and PutBack leaves everything as it
  // is.
  void Lose(const absl::Status& why);

  // Gives all variables the values that they had. Returns the number of variables.
  size_t PutBack();

  // Returns the additional memory that the written variables take.
  size_t bytes() const;

 private:
  struct Kept {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    tensorflow::Tensor value;
    bool copies_on_read = false;
  };

  absl::Status KeepValue(const tensorflow::ResourceHandle& handle,
                         tensorflow::core::RefCountPtr<tensorflow::Var> variable);

  const size_t bytes_max_;
  const std::optional<std::set<std::string>>& written_;
  mutable std::mutex mutex_;
  size_t bytes_ = 0;
  absl::Status lost_;
  std::map<const tensorflow::Var*, Kept> kept_;
};

}  // namespace millpond::tf
