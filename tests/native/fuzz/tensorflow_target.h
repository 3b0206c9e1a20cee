#pragma once

#include <cstddef>
#include <cstdint>

#include "native/memory/request_memory.h"
#include "native/tf/runtime.h"
#include "tests/native/failing_memory.h"
#include "tests/native/fuzz/fuzz_target.h"

namespace millpond::fuzz {

// Starts TensorFlow once, on memory that refuses blocks above 64 MiB: an input of a few bytes may
// ask for a tensor of 2 GiB, and filling it would only take time.
inline void StartTensorFlow() {
  static const bool is_started = [] {
    const auto is_large = [](int64_t, size_t bytes) { return bytes > size_t{64} << 20U; };
    auto* const memory = new memory::FailingMemory(new memory::RequestMemory, is_large);
    return tf::InitializeRuntime({1, 1}, memory).ok();
  }();
  FUZZ_CHECK(is_started, "TensorFlow");
}

}  // namespace millpond::fuzz
