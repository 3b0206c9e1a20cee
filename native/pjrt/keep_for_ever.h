#pragma once

#include <deque>
#include <mutex>
#include <utility>

namespace millpond::pjrt {

// Keeps `value` until the process ends, because a device that is gone may still use it. Any thread.
template <typename T>
void KeepForEver(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::deque<T>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace millpond::pjrt
