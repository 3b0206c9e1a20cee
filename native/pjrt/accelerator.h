#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/client.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/device_tables.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/driver_thread.h"
#include "native/pjrt/executable.h"
#include "native/pjrt/pinned_memory.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/shared_executables.h"
#include "native/pjrt/staging.h"
#include "native/pjrt/transfer_manager.h"

namespace millpond::pjrt {

struct AcceleratorOptions {
  // The share of each GPU's memory that the client may take in all, from 0 to 1. CUDA only.
  float memory_fraction = 0.9F;
  // The most memory of each device for parameters and runs, if that is less; 0: no such limit.
  int64_t memory_bytes_max = 0;
  // A version's parameters that no run has used for this long may be dropped for another version's.
  int64_t idle_ns = DeviceMemory::kIdleNs;
  // The most memory of this process that is pinned for uploads to all devices; -1: half of the
  // machine's.
  int64_t pinned_bytes_max = -1;
  // A device that ends no copy of an upload, or no run, for so long is gone. No call that pins
  // memory is waited for longer.
  int64_t stall_ns = kStallNs;
  // The most that a run waits for its turn.
  int64_t wait_ns_max = DeviceTurns::kWaitNsMax;
};

// The memory of an accelerator, as its client counts it.
struct AcceleratorMemory {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;  // the most that the server may take; 0: unknown
};

// The state of an accelerator, for the choice of a model's device.
struct AcceleratorState {
  int64_t limit_bytes = 0;      // for parameters and runs; 0: unlimited
  int64_t parameter_bytes = 0;  // charged now
  int64_t idle_bytes = 0;       // of these, what may be dropped for a version that needs room
  int64_t busy_ns = 0;          // the time that runs took in all
  bool is_failing = false;      // the last run or upload there failed
  // The programs that were compiled for it, those that were loaded, as bytes of an executable, and
  // those that another version had.
  int64_t compiled_count = 0;
  int64_t loaded_count = 0;
  int64_t shared_count = 0;
  // The memory of this process that is pinned for uploads, to all accelerators of the plugin, and
  // the most that may be.
  int64_t pinned_bytes = 0;
  int64_t pinned_limit_bytes = 0;
  int64_t staging_bytes = 0;  // of this process's memory
};

// One accelerator: a GPU, a slice of one, or another device of a plugin. It has its own memory,
// turns and uploads, so models on two accelerators do not wait for each other.
//
// Thread: any number at once. Owner: a shared pointer, because buffers and executables need the
// client to the end.
class Accelerator {
 public:
  using List = std::vector<std::shared_ptr<Accelerator>>;

  // Makes an accelerator of each device that the plugin finds, through one client. Returns the
  // client's errors, and NOT_FOUND if there is no device.
  static base::StatusOr<List> MakeAll(const Plugin& plugin, const AcceleratorOptions& options);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // Its place among the devices of the plugin, from "0" on.
  const std::string& name() const { return name_; }
  // The plugin, the platform's version and the sort of device, like "… NVIDIA H200".
  const std::string& description() const { return description_; }
  // The target of compilations: an executable can be loaded for all accelerators with the same one.
  const std::string& target() const { return target_; }
  // The description by which an AheadCompiler of another process compiles for it, without a client
  // of a GPU. It is "" if that process makes a client of its own, because it is of this machine's
  // CPUs. Nothing if only this process can compile.
  const std::optional<std::string>& topology() const { return topology_; }

  // Compiles a program in the form of a serialized xla.HloModuleProto: 0.2 to 1 s for a GPU, and up
  // to 7 s if it `autotunes` large matrix products. That stalls all other runs on the GPU.
  base::StatusOr<std::unique_ptr<Executable>> Compile(std::string_view hlo,
                                                      bool autotunes = true) const;
  // Compilations for a GPU autotune until EndAutotuning, because no request waits for an answer
  // yet.
  bool autotunes() const { return autotunes_.load(std::memory_order_relaxed); }
  void EndAutotuning() const { autotunes_.store(!client_->is_cuda(), std::memory_order_relaxed); }
  // Loads what Executable::Serialize returned: about 5 ms. Returns the plugin's error if it was
  // made by another version of the plugin or for another sort of accelerator, and INTERNAL if the
  // plugin loads it for another device of several.
  base::StatusOr<std::unique_ptr<Executable>> LoadExecutable(std::string_view serialized) const;
  SharedExecutables& executables() const { return executables_; }

  // Starts to copy `tensor` to the accelerator. Its elements must stay as they are until `*copied`
  // has happened, which belongs to the caller. Returns RESOURCE_EXHAUSTED if the accelerator has no
  // room; a plugin may tell that only by the buffer's readiness.
  base::StatusOr<DeviceBuffer> StartUpload(const HostTensor& tensor, PJRT_Event** copied) const;

  // Takes memory of the accelerator for `tensors`, whose parts are then copied in any order. The
  // errors are those of TransferManager::Make.
  base::StatusOr<std::unique_ptr<TransferManager>> MakeTransfers(
      const std::vector<HostTensor>& tensors) const {
    return TransferManager::Make(*client_, device_, tensors);
  }

  // The memory by its use, the turns of runs, and the thread that uploads parameters.
  DeviceMemory& memory() const { return memory_; }
  DeviceTurns& turns() const { return turns_; }
  // The parameters in its memory that versions may have in common.
  DeviceTables& tables() const { return tables_; }
  DriverThread& uploads() const { return *uploads_; }
  // The memory of this process that is pinned for uploads. All accelerators of a plugin share it.
  const std::shared_ptr<PinnedMemory>& pinned() const { return pinned_; }
  // Buffers of ChunkedUpload::kChunkBytes, for parameters in memory that is not pinned.
  StagingPool& upload_staging() const { return *upload_staging_; }
  // Spaces out what stops all runs, of all accelerators of the plugin.
  DriverPace& pace() const { return client_->pace(); }
  int64_t stall_ns() const { return stall_ns_; }
  // An upload or a run was abandoned, because nothing of it ended for stall_ns. What it holds is
  // kept for ever, so no other one begins. Nor are programs and the client freed, because the
  // driver may hang in these calls.
  void CountAsLost() const;
  bool is_lost() const { return is_lost_->load(std::memory_order_relaxed); }
  // Copies a word to the accelerator, and waits for it: false if that fails, for another reason
  // than a lack of memory. So it tells what fails on a device from what fails because of it.
  bool Responds() const;
  // The error of what does not begin on an accelerator that is lost.
  static base::Status LostStatus() {
    return {
        base::Code::kUnavailable,
        "the accelerator counts as lost, because an earlier upload or run has not ended; look at "
        "the device, and start the server anew"};
  }

  // The most memory of this process that the staging buffers of all programs take.
  static constexpr int64_t kStagingBytesMax = int64_t{256} << 20U;
  // The staging buffers of the models' programs. This object must outlive them.
  StagingPools& staging() const { return staging_; }
  // Makes a pool of staging buffers, `bytes` each. This object must outlive it.
  std::unique_ptr<StagingPool> MakeStaging(size_t bytes) const {
    return std::make_unique<StagingPool>(pinned_->pins(), staging_budget_, bytes);
  }
  int64_t staging_bytes() const { return staging_budget_->in_use_bytes(); }

  // Notes whether a run or an upload has failed for another reason than a lack of memory.
  void NoteFailure() const { is_failing_.store(true, std::memory_order_relaxed); }
  void NoteSuccess() const {
    // A store in each run would take the cache line from the other threads.
    if (is_failing_.load(std::memory_order_relaxed)) is_failing_.store(false);
  }

  // Lets the client take `bytes` from the device, if there are so many, which it then keeps for
  // later buffers. A GPU's driver stops all runs while it gives memory: 20 ms for 500 MB on an
  // H200.
  void Reserve(int64_t bytes) const;

  AcceleratorState State() const;
  // The error is UNIMPLEMENTED if the plugin does not count.
  base::StatusOr<AcceleratorMemory> Memory() const;
  const Api& api() const { return client_->api(); }

 private:
  Accelerator(std::shared_ptr<const Client> client, std::shared_ptr<PinnedMemory> pinned,
              PJRT_Device* device, size_t index, const AcceleratorOptions& options);
  base::Status LookAtDevice(bool is_one_of_several);
  base::Status CheckIsHere(const Executable& executable) const;

  const std::shared_ptr<const Client> client_;
  const std::shared_ptr<PinnedMemory> pinned_;
  PJRT_Device* const device_;
  const std::string name_;
  const int64_t memory_bytes_max_;
  const int64_t stall_ns_;
  std::string description_;
  std::string target_;
  std::optional<std::string> topology_;
  std::string compile_options_;
  bool is_one_of_several_ = false;
  mutable std::atomic<bool> is_failing_{false};
  const std::shared_ptr<std::atomic<bool>> is_lost_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::atomic<bool> autotunes_{true};
  mutable std::atomic<int64_t> compiled_count_{0};
  mutable std::atomic<int64_t> loaded_count_{0};
  mutable SharedExecutables executables_;
  mutable DeviceMemory memory_;
  mutable DeviceTurns turns_;
  mutable DeviceTables tables_;
  const std::shared_ptr<base::ByteBudget> staging_budget_ =
      std::make_shared<base::ByteBudget>(kStagingBytesMax);
  mutable StagingPools staging_;
  const std::unique_ptr<StagingPool> upload_staging_;
  std::unique_ptr<DriverThread> uploads_;  // ends first
};

}  // namespace millpond::pjrt
