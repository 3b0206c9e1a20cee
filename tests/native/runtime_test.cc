#include "native/tf/runtime.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/base/thread_priority.h"
#include "native/tf/memory_allocator.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"
#include "tests/native/fake_memory.h"
#include "tests/native/tensorflow_runtime.h"

namespace millpond::tf {
namespace {

using base::Code;
using testing::RuntimeMemory;

TEST(Runtime, PutsOurAllocatorInThePlaceOfTensorFlowsPool) {
  EXPECT_EQ(tensorflow::cpu_allocator()->Name(), "millpond_request");
  EXPECT_EQ(tensorflow::cpu_allocator(0)->Name(), "millpond_request");
}

TEST(Runtime, TensorsComeFromTheRequestMemoryAndGoBackToIt) {
  constexpr int64_t kBytes = 1 << 20;
  const int64_t before_bytes = RuntimeMemory().Statistics().in_use_bytes;
  {
    const tensorflow::Tensor tensor(tensorflow::DT_INT8, {kBytes});
    EXPECT_GE(RuntimeMemory().Statistics().in_use_bytes, before_bytes + kBytes);
  }
  EXPECT_EQ(RuntimeMemory().Statistics().in_use_bytes, before_bytes);
}

TEST(Runtime, DevicesOfASessionAllocateFromItToo) {
  std::vector<std::unique_ptr<tensorflow::Device>> devices;
  ASSERT_TRUE(tensorflow::DeviceFactory::AddDevices(tensorflow::SessionOptions(),
                                                    "/job:localhost/replica:0/task:0", &devices)
                  .ok());
  ASSERT_EQ(devices.size(), 1);
  EXPECT_EQ(devices[0]->device_type(), "CPU");
  EXPECT_EQ(devices[0]->GetAllocator({})->Name(), "millpond_request");
}

// Returns the scheduling policy of every thread of this process, by its name.
std::multimap<std::string, int> ThreadPolicies() {
  std::multimap<std::string, int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    policies.emplace(name, sched_getscheduler(std::stoi(task.path().filename())));
  }
  return policies;
}

TEST(Runtime, TensorFlowPoolsHaveTheServersPriority) {
  // The first step of a loader; the pools exist already, so they do not inherit its priority.
  std::thread([] {
    ASSERT_TRUE(base::SetThreadPriority(base::ThreadPriority::kIdle).ok());
    const std::unique_ptr<tensorflow::Session> session(
        tensorflow::NewSession(tensorflow::SessionOptions()));
    ASSERT_NE(session, nullptr);
    for (const auto& [name, policy] : ThreadPolicies()) {
      if (name.rfind("tf_Compute", 0) == 0) {
        EXPECT_NE(policy, SCHED_IDLE) << name;
      }
    }
  }).join();
  EXPECT_GT(ThreadPolicies().count("tf_Compute"), 0);
}

TEST(Runtime, InitializedTwiceItTakesTheSameOptionsAndNoOthers) {
  EXPECT_TRUE(IsRuntimeInitialized());
  EXPECT_TRUE(InitializeRuntime(testing::TestRuntimeOptions(), &RuntimeMemory()).ok());
  RuntimeOptions others = testing::TestRuntimeOptions();
  others.intra_op_thread_count += 1;
  EXPECT_EQ(InitializeRuntime(others, &RuntimeMemory()).code(), Code::kFailedPrecondition);
  EXPECT_EQ(CurrentRuntimeOptions().intra_op_thread_count,
            testing::TestRuntimeOptions().intra_op_thread_count);
}

TEST(Runtime, NamesTheTensorFlowThatItWasBuiltFor) {
  EXPECT_EQ(TensorFlowVersion().substr(0, 5), "2.21.");
}

TEST(MemoryAllocator, HandsOutTheResourcesBlocksAndReportsItsStatistics) {
  memory::FakeMemory memory(1'000);
  MemoryAllocator allocator("fake", &memory);
  void* const block = allocator.AllocateRaw(64, 700);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(allocator.AllocateRaw(64, 700), nullptr);
  const auto stats = allocator.GetStats();
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->bytes_in_use, 700);
  EXPECT_EQ(stats->num_allocs, 1);
  allocator.DeallocateRaw(block);
  EXPECT_EQ(allocator.GetStats()->bytes_in_use, 0);
  EXPECT_EQ(allocator.GetStats()->peak_bytes_in_use, 700);
}

TEST(MemoryAllocator, TensorWithoutMemoryIsUninitializedNoThrow) {
  memory::FakeMemory memory(1'000);
  MemoryAllocator allocator("fake", &memory);
  const tensorflow::Tensor tensor(&allocator, tensorflow::DT_INT8, {2'000});
  EXPECT_FALSE(tensor.IsInitialized());
}

}  // namespace
}  // namespace millpond::tf
