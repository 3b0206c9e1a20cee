#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/driver_pace.h"

namespace millpond::pjrt {

// Returns a compiled program as bytes, for Accelerator::LoadExecutable of the same build of the
// plugin. Returns UNIMPLEMENTED if the plugin cannot.
base::StatusOr<std::string> Serialize(const Api& api, PJRT_Executable* executable);
// Frees it.
void Destroy(const Api& api, PJRT_Executable* executable);

// A program that is compiled for an accelerator, whose client must outlive it.
//
// Thread: any number at once. The destructor waits for the pace, so it is for no thread of a
// request.
class Executable {
 public:
  // Says whether the accelerator counts as lost.
  using IsLost = std::shared_ptr<const std::atomic<bool>>;

  // Takes over `loaded`, also if it returns the plugin's error. It is freed at the `pace` of its
  // client, but never on an accelerator that is lost, because the driver may hang in that call.
  static base::StatusOr<std::unique_ptr<Executable>> Own(const Api& api, DriverPace* pace,
                                                         IsLost is_lost,
                                                         PJRT_LoadedExecutable* loaded);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // The devices that it runs on.
  base::StatusOr<std::vector<PJRT_Device*>> Devices() const;
  size_t output_count() const { return output_count_; }
  // The memory of the accelerator that a run takes beside its arguments and outputs; 0 if the
  // plugin does not say.
  int64_t temporary_bytes() const { return temporary_bytes_; }
  // The memory of the accelerator that the program itself takes; 0 if the plugin does not say.
  int64_t code_bytes() const { return code_bytes_; }

  // Starts a run with `arguments`, which it leaves as they are. Only if the program says so, it
  // writes an output over an argument, which can then only be freed; not if the argument's index is
  // among `kept`. Appends the outputs to `*outputs`; they can be used at once, because the
  // accelerator orders what uses them after the run.
  //
  // Danger: an argument that was copied to the accelerator must be ready before
  // (DeviceBuffer::AwaitReady), although PJRT allows one whose copy is under way. XLA has the GPU
  // wait for the copy, but a program that it runs as a CUDA graph begins before all the same, in 6
  // of 10,000 runs beside the upload of a version, and computes from what was there before
  // (measured on H200: docs/accelerators.md).
  base::Status Run(const std::vector<PJRT_Buffer*>& arguments, std::vector<DeviceBuffer>* outputs,
                   const std::vector<int64_t>& kept = {}) const;

  // True after a run has begun. The first one may stop all runs: 3 to 8 ms on an H200.
  bool has_run() const { return has_run_.load(std::memory_order_relaxed); }

  // Returns the executable as bytes (pjrt::Serialize).
  base::StatusOr<std::string> Serialize() const;

 private:
  Executable(const Api& api, DriverPace* pace, IsLost is_lost, PJRT_LoadedExecutable* loaded)
      : api_(api), pace_(pace), is_lost_(std::move(is_lost)), loaded_(loaded) {}

  void CountMemory(PJRT_Executable* executable);
  // Calls `look` with what the API tells about the executable, and frees that.
  template <typename Look>
  base::Status LookAt(const std::string& while_doing, const Look& look) const;

  const Api api_;
  DriverPace* const pace_;
  const IsLost is_lost_;
  PJRT_LoadedExecutable* const loaded_;
  size_t output_count_ = 0;
  int64_t temporary_bytes_ = 0;
  int64_t code_bytes_ = 0;
  mutable std::atomic<bool> has_run_{false};
};

}  // namespace millpond::pjrt
