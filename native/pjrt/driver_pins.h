#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "native/pjrt/client.h"
#include "native/pjrt/driver_thread.h"

namespace millpond::pjrt {

// Pins and unpins memory of this process for all accelerators of a client, by calls of the driver
// on a thread of their own.
//
// No call is waited for longer than overdue_ns, because a driver may hang. No other one is made
// until it ends. If the driver ends such a pin after all, the memory is unpinned at once.
//
// Thread: any. Owner: shared by PinnedMemory and the staging buffers; it keeps the client.
class DriverPins {
 public:
  explicit DriverPins(std::shared_ptr<const Client> client, int64_t overdue_ns = kStallNs)
      : client_(std::move(client)), overdue_ns_(overdue_ns) {}
  ~DriverPins();
  DriverPins(const DriverPins&) = delete;
  DriverPins& operator=(const DriverPins&) = delete;

  // Returns false if the memory is not pinned: the driver refuses or hangs, or the plugin cannot.
  bool Pin(char* start, size_t bytes);
  // Ends what Pin of `start` began. Returns false if the driver refuses or hangs: the pages may be
  // pinned for ever, so the caller must neither move nor unmap them. Another mapping in their
  // place would be taken for pinned, and copied from the old pages.
  [[nodiscard]] bool Unpin(char* start);

  const std::shared_ptr<const Client>& client() const { return client_; }

 private:
  class Call;

  bool Make(char* start, size_t bytes);

  const std::shared_ptr<const Client> client_;
  const int64_t overdue_ns_;
  std::unique_ptr<DriverThread> thread_ = std::make_unique<DriverThread>("pin-memory");
};

}  // namespace millpond::pjrt
