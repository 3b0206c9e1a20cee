#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tf/parameter_memory.h"
#include "native/tf/run_context.h"
#include "native/tf/run_pool.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"

namespace millpond::tf {

// While it lives, kernels that ServableDevice computes on this thread look at `run` first, and may
// together have no more than `memory_bytes_max` allocated at a time: what they ask for beyond is
// refused, and the run ends with RESOURCE_EXHAUSTED before its next kernel, or the one after if
// another thread of a kernel allocated (PoolUsageScope). One kernel's strings are seen when that
// kernel has ended. Without jemalloc nothing is counted.
// With `checks_shapes` each kernel's inputs are checked by CheckKernelShapes too.
class RunScope {
 public:
  static constexpr int64_t kNoLimit = INT64_MAX;

  explicit RunScope(const RunContext& run, bool checks_shapes = false,
                    int64_t memory_bytes_max = kNoLimit);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  // `ran`, which the run ended with, but for a run that its memory ended: that one names the limit.
  base::Status Explain(base::Status ran) const;

 private:
  friend class RunMemory;

  const RunContext& run_;
  const bool checks_shapes_;
  const int64_t memory_bytes_max_;
  int64_t usage_bytes_max_ = kNoLimit;  // of memory::ThreadUsageBytes
  bool was_refused_ = false;
  const PoolUsageScope pool_usage_;
  RunScope* const outer_;
};

// The device's memory for requests: the process's, within the limits of the run that asks.
// Thread: any. Cost: about 2 ns an allocation more than `requests`.
class RunAllocator final : public tsl::Allocator {
 public:
  // Borrows it.
  explicit RunAllocator(tsl::Allocator* requests) : requests_(requests) {}

  std::string Name() override { return requests_->Name(); }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* block) override { requests_->DeallocateRaw(block); }
  std::optional<tsl::AllocatorStats> GetStats() override { return requests_->GetStats(); }

 private:
  tsl::Allocator* const requests_;
};

struct RunWorkers;

// The CPU device of one Session. It is ours and not the stock one for two reasons: it allocates
// from the version's own memory while the version is loading and from the request memory afterwards
// (the stock one's mutex and pool are shared by both: docs/design.md, "The request allocator"), and
// it can end a run between two kernels (run_context.h).
class ServableDevice : public tensorflow::ThreadPoolDevice {
 public:
  // `parameters` is null where the version has no memory of its own.
  ServableDevice(const tensorflow::SessionOptions& options, const std::string& name,
                 tsl::Allocator* requests, std::shared_ptr<ParameterMemory> parameters);
  tsl::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  // Constants of the graph.
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override;

  // The pool of the process behind a RunPool, so that a run answers for what its kernels allocate
  // there.
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override;
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override;

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;
  void ComputeAsync(tensorflow::AsyncOpKernel* kernel, tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) override;

 private:
  const uint64_t id_;               // no other device of the process has it
  tsl::Allocator* const requests_;  // of the process, never freed
  const std::shared_ptr<ParameterMemory> parameters_;
  const RunWorkers* const workers_;  // of the process, never freed
};

// Makes the CPU devices of every Session in the process. Sessions are made on the thread that
// loads a version, several devices a version (the session's, grappler's, function runtimes').
class ServableDeviceFactory : public tensorflow::DeviceFactory {
 public:
  explicit ServableDeviceFactory(tsl::Allocator* requests) : requests_(requests) {}

  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override;
  absl::Status CreateDevices(const tensorflow::SessionOptions& options,
                             const std::string& name_prefix,
                             std::vector<std::unique_ptr<tensorflow::Device>>* devices) override;

 private:
  tsl::Allocator* const requests_;  // of the process, never freed
};

}  // namespace millpond::tf
