#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/driver_pace.h"
#include "native/pjrt/plugin.h"

namespace millpond::pjrt {

// Returns what sort of device is described, like "NVIDIA H200".
base::StatusOr<std::string> KindOf(const Api& api, PJRT_DeviceDescription* description);

// The connection to all accelerators of this machine that a plugin finds.
//
// Thread: any number at once. Owner: a shared pointer of each accelerator.
class Client {
 public:
  // Makes the client: 0.9 s for a GPU. It may take `memory_fraction` of each GPU's memory, from 0
  // to 1; other plugins than CUDA's ignore that. Returns the plugin's error, as for a GPU whose
  // driver is too old.
  static base::StatusOr<std::shared_ptr<const Client>> Make(const Plugin& plugin,
                                                            float memory_fraction);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  PJRT_Client* get() const { return client_; }
  const Api& api() const { return api_; }
  // Spaces out what stops the runs of all devices.
  DriverPace& pace() const { return pace_; }
  // The plugin and the platform's version.
  const std::string& description() const { return description_; }
  // The build of the plugin (Plugin::build).
  const std::string& plugin_build() const { return plugin_build_; }
  // True if it is a client of NVIDIA's GPUs.
  bool is_cuda() const { return is_cuda_; }
  // The devices that this process may use, which the client owns. Returns NOT_FOUND if there is
  // none.
  base::StatusOr<std::vector<PJRT_Device*>> Devices() const;
  // Returns what sort of device it is, like "NVIDIA H200".
  base::StatusOr<std::string> KindOf(PJRT_Device* device) const;
  // Returns how another process may compile for the devices (Accelerator::topology).
  std::optional<std::string> Topology() const;
  // Makes `bytes` of this process's memory at `data` ones that accelerators copy directly. Returns
  // UNIMPLEMENTED if the plugin cannot, and UNAVAILABLE while a pin is overdue. The memory stays
  // until Unpin.
  base::Status Pin(char* data, size_t bytes) const;
  // Ends what Pin began at `data`. After an error, as of a device that is gone, the memory may be
  // pinned until the process ends.
  base::Status Unpin(char* data) const;
  // Notes that the driver has not ended a pin in time, or that it has at last: others would hang as
  // well meanwhile.
  void CountPinAsOverdue(bool is_overdue) const { overdue_pins_ += is_overdue ? 1 : -1; }
  bool HasOverduePin() const { return overdue_pins_.load() > 0; }
  // Returns the number by which a program names the device that it runs on.
  base::StatusOr<int64_t> IdOf(PJRT_Device* device) const;

 private:
  Client(const Plugin& plugin, PJRT_Client* client)
      : api_(plugin.api()),
        client_(client),
        is_cuda_(plugin.is_cuda()),
        description_(plugin.description()),
        plugin_build_(plugin.build()) {}
  base::Status AddVersion();
  std::optional<std::string> TargetConfig() const;
  bool IsOfCpus() const;
  base::StatusOr<PJRT_DeviceDescription*> DescriptionOf(PJRT_Device* device) const;

  const Api api_;
  PJRT_Client* const client_;
  const bool is_cuda_;
  std::string description_;
  const std::string plugin_build_;
  mutable DriverPace pace_;
  mutable std::atomic<int> overdue_pins_{0};
};

}  // namespace millpond::pjrt
