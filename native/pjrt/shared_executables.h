#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "native/pjrt/executable.h"

namespace millpond::pjrt {

// The executables that an accelerator has now, by the name of what they were compiled from.
// Versions of one graph share them, because a GPU's driver may stop all runs while it loads a
// program or frees one.
//
// Thread: any number at once. An executable stays as long as a version has it.
class SharedExecutables {
 public:
  using Pointer = std::shared_ptr<const Executable>;

  // Returns the executable of `name`. Null if no version has it.
  Pointer Find(std::string_view name) const;
  // Says whether Find would return one.
  bool Has(std::string_view name) const;
  // Returns `made`, which others then find, or the executable that another load has shared
  // meanwhile.
  Pointer Share(std::string_view name, std::unique_ptr<Executable> made);
  // The executables that were found here.
  int64_t found_count() const { return found_count_.load(std::memory_order_relaxed); }

 private:
  mutable std::atomic<int64_t> found_count_{0};
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Executable>, std::less<>> executables_;
};

}  // namespace millpond::pjrt
