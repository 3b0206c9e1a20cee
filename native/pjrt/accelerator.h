#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/executable.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/upload_queue.h"

namespace millpond::pjrt {

struct AcceleratorOptions {
  // The share of the GPU's memory that the client may take in all, from 0 to 1. CUDA only.
  float memory_fraction = 0.9F;
  // A version's parameters that no run has used for this long may be dropped for another version's.
  int64_t idle_ns = DeviceMemory::kIdleNs;
  // The most that a run waits for its turn.
  int64_t wait_ns_max = DeviceTurns::kWaitNsMax;
};

// The memory of an accelerator, as its client counts it.
struct AcceleratorMemory {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;  // the most that the client may take; 0: unknown
};

// One accelerator, which is the first that the plugin finds, through a client of its own.
//
// Thread: any number at once. Owner: a shared pointer, because buffers and executables need the
// client to the end.
class Accelerator {
 public:
  // Makes the client: 0.9 s for a GPU. Returns the plugin's error, as for a GPU whose driver is too
  // old, and NOT_FOUND if it finds no device.
  static base::StatusOr<std::shared_ptr<Accelerator>> Make(const Plugin& plugin,
                                                           const AcceleratorOptions& options);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // The plugin, the platform's version and the device, like "… NVIDIA H200". An executable fits
  // accelerators with the same description.
  const std::string& description() const { return description_; }

  // Compiles a program in the form of a serialized xla.HloModuleProto: 0.2 to 1 s for a GPU.
  base::StatusOr<std::unique_ptr<Executable>> Compile(std::string_view hlo) const;
  // Loads what Executable::Serialize returned: about 5 ms. Returns the plugin's error if it was
  // made by another version of the plugin or for another accelerator.
  base::StatusOr<std::unique_ptr<Executable>> LoadExecutable(std::string_view serialized) const;

  // Starts to copy `tensor` to the accelerator. Its elements must stay as they are until `*copied`
  // has happened, which belongs to the caller. Returns RESOURCE_EXHAUSTED if the accelerator has no
  // room; a plugin may tell that only by the buffer's readiness.
  base::StatusOr<DeviceBuffer> StartUpload(const HostTensor& tensor, PJRT_Event** copied) const;

  // The memory by its use, the turns of runs, and the uploads under way.
  DeviceMemory& memory() const { return memory_; }
  DeviceTurns& turns() const { return turns_; }
  UploadQueue& uploads() const { return *uploads_; }

  // The error is UNIMPLEMENTED if the plugin does not count.
  base::StatusOr<AcceleratorMemory> Memory() const;
  const Api& api() const { return api_; }

 private:
  Accelerator(const Plugin& plugin, PJRT_Client* client, const AcceleratorOptions& options)
      : api_(plugin.api()),
        client_(client),
        description_(plugin.description()),
        memory_(DeviceMemory::kUnlimited, options.idle_ns),
        turns_(options.wait_ns_max) {}
  base::Status FindDevice();

  const Api api_;
  PJRT_Client* const client_;
  PJRT_Device* device_ = nullptr;
  std::string description_;
  mutable DeviceMemory memory_;
  mutable DeviceTurns turns_;
  std::unique_ptr<UploadQueue> uploads_ = std::make_unique<UploadQueue>();
};

}  // namespace millpond::pjrt
