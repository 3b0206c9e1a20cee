#include "native/pjrt/shared_executables.h"

#include <iterator>
#include <utility>

namespace millpond::pjrt {

SharedExecutables::Pointer SharedExecutables::Find(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = executables_.find(name);
  if (found == executables_.end()) return nullptr;
  Pointer executable = found->second.lock();
  if (executable != nullptr) found_count_.fetch_add(1, std::memory_order_relaxed);
  return executable;
}

bool SharedExecutables::Has(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = executables_.find(name);
  return found != executables_.end() && !found->second.expired();
}

SharedExecutables::Pointer SharedExecutables::Share(std::string_view name,
                                                    std::unique_ptr<Executable> made) {
  // Declared before the lock, so that an executable that is not needed is freed without it.
  Pointer shared(std::move(made));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = executables_.begin(); entry != executables_.end();) {
    entry = entry->second.expired() ? executables_.erase(entry) : std::next(entry);
  }
  std::weak_ptr<const Executable>& entry = executables_[std::string(name)];
  if (Pointer other = entry.lock()) return other;
  entry = shared;
  return shared;
}

}  // namespace millpond::pjrt
