#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/tensor/run_context.h"
#include "native/tf/kernel_watch.h"
#include "native/tf/parameter_memory.h"
#include "native/tf/run_pool.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"

namespace millpond::tf {

// Applies limits to the kernels that ServableDevice computes on this thread while the scope lives.
//
// Each kernel first checks `run` for cancellation and deadline. Together the kernels may have at
// most `memory_bytes_max` allocated at a time. The memory of a client's run is also counted in
// `all_runs`, as it grows, so that all runs under way are bounded together. Allocations beyond
// either limit fail, and the run ends with RESOURCE_EXHAUSTED before its next kernel. If another
// thread of a kernel allocated the memory, the run may end one kernel later (PoolUsageScope). The
// strings of a kernel are counted only when the kernel has ended. Without jemalloc nothing is
// counted.
//
// TensorFlow's oneDNN kernels do not look if an allocation failed, and would write to address 0. So
// what their outputs take is asked for before they are computed, and within them no allocation
// fails: their scratch memory may exceed the limits until the kernel has ended.
//
// If `checks_shapes`, CheckKernelShapes also checks the inputs of each kernel. `writes` watches
// each kernel. It is null if no kernel may write, or if the run may write and no one needs to know.
class RunScope {
 public:
  static constexpr int64_t kNoLimit = INT64_MAX;
  // Runs that allocate less at a time count in no budget, and write to no shared cache line. A
  // server has few threads that run requests, and each takes no more than this.
  static constexpr int64_t kFreeBytes = int64_t{1} << 20U;

  explicit RunScope(const tensor::RunContext& run, bool checks_shapes = false,
                    int64_t memory_bytes_max = kNoLimit, KernelWatch* writes = nullptr,
                    base::ByteBudget* all_runs = nullptr);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  // Returns `ran`, the status of the run. If the run was ended by a limit of its memory, returns an
  // error that names the limit.
  base::Status Explain(base::Status ran) const;
  // Returns the share of the memory that the run has left allocated, which is its results. It is
  // kept as long as they are. Null if they are too small to count.
  std::shared_ptr<const base::ByteBudget::Share> TakeCharge();
  // The deadline of the run of this thread's scope; none without a scope.
  static int64_t CurrentDeadlineNs();

 private:
  friend class RunMemory;

  enum class Refusal { kNone, kOfRun, kOfAllRuns };

  bool Grow(int64_t bytes);
  int64_t UsageBytes() const;  // of the run
  // Leaves out bytes that this thread has just allocated for another purpose.
  void Forget(int64_t bytes);

  const tensor::RunContext& run_;
  const bool checks_shapes_;
  const int64_t memory_bytes_max_;
  KernelWatch* const writes_;
  int64_t begin_bytes_ = 0;             // by memory::ThreadUsageBytes, as the next
  int64_t usage_bytes_max_ = kNoLimit;  // that the run may have now
  base::ByteBudget::Share charge_;
  Refusal refusal_ = Refusal::kNone;
  bool never_fails_ = false;  // while a kernel runs that does not look if an allocation failed
  const PoolUsageScope pool_usage_;
  RunScope* const outer_;
};

// The device's memory for requests: the process's memory, within the limits of the current run.
// Thread: any. Cost: about 2 ns an allocation more than `requests`.
class RunAllocator final : public tsl::Allocator {
 public:
  // Borrows `requests`.
  explicit RunAllocator(tsl::Allocator* requests) : requests_(requests) {}

  std::string Name() override { return requests_->Name(); }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* block) override { requests_->DeallocateRaw(block); }
  std::optional<tsl::AllocatorStats> GetStats() override { return requests_->GetStats(); }

 private:
  tsl::Allocator* const requests_;
};

struct RunWorkers;

// The CPU device of one Session. It replaces the stock device for two reasons. It allocates from
// the version's own memory while the version is loading, and from the request memory after that.
// The stock allocator puts parameters and requests of 256 KiB and more into one pool behind one
// mutex, and returns no memory to the system (docs/design.md, "The request allocator"). And this
// device can end a run between two kernels (run_context.h).
class ServableDevice : public tensorflow::ThreadPoolDevice {
 public:
  // Makes a device. `parameters` is null if the version has no memory of its own.
  ServableDevice(const tensorflow::SessionOptions& options, const std::string& name,
                 tsl::Allocator* requests, std::shared_ptr<ParameterMemory> parameters);
  tsl::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  // Makes a constant of the graph.
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override;

  // Both return the process's pool behind a RunPool, so that a run is charged for the memory that
  // its kernels allocate there. It has as many threads as the run's share of the cores.
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override;
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override;

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;
  void ComputeAsync(tensorflow::AsyncOpKernel* kernel, tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) override;

 private:
  const uint64_t id_;               // unique in the process
  tsl::Allocator* const requests_;  // the process's, never freed
  const std::shared_ptr<ParameterMemory> parameters_;
  const RunWorkers* const workers_;  // the process's, never freed
};

// Makes the CPU devices of every Session in the process. Sessions are made on the thread that loads
// a version. A version has several devices (for the session, grappler and function runtimes).
class ServableDeviceFactory : public tensorflow::DeviceFactory {
 public:
  explicit ServableDeviceFactory(tsl::Allocator* requests) : requests_(requests) {}

  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override;
  absl::Status CreateDevices(const tensorflow::SessionOptions& options,
                             const std::string& name_prefix,
                             std::vector<std::unique_ptr<tensorflow::Device>>* devices) override;

 private:
  tsl::Allocator* const requests_;  // the process's, never freed
};

}  // namespace millpond::tf
