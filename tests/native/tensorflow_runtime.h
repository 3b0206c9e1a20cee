#pragma once

#include <gtest/gtest.h>

#include "native/memory/request_memory.h"
#include "native/tf/runtime.h"
#include "tests/native/recording_memory.h"

namespace millpond::testing {

// The allocator that TensorFlow uses in this process.
inline memory::RecordingMemory& RuntimeMemory() {
  static auto* const memory = new memory::RecordingMemory(new memory::RequestMemory);
  return *memory;
}

// One thread a pool: these tests count allocations and threads.
inline tf::RuntimeOptions TestRuntimeOptions() { return {1, 1}; }

class RuntimeEnvironment : public ::testing::Environment {
  void SetUp() override {
    ASSERT_TRUE(tf::InitializeRuntime(TestRuntimeOptions(), &RuntimeMemory()).ok());
  }
};

// Including this file initializes TensorFlow before the first test.
inline ::testing::Environment* const runtime_environment =
    ::testing::AddGlobalTestEnvironment(new RuntimeEnvironment);

}  // namespace millpond::testing
