#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "native/pjrt/client.h"
#include "native/pjrt/driver_thread.h"

namespace millpond::pjrt {

// Pins and unpins memory of this process for all accelerators of a client, by calls of the driver
// on a thread of their own.
//
// No call is waited for longer than overdue_ns, because a driver may hang. No other one is made
// until it ends. If the driver ends such a pin after all, the memory is unpinned at once. The
// unpins that were asked for meanwhile are made next, and pins only after them.
//
// Thread: any. Owner: shared by PinnedMemory and the staging buffers, one for a client, which it
// keeps.
class DriverPins {
 public:
  explicit DriverPins(std::shared_ptr<const Client> client, int64_t overdue_ns = kStallNs)
      : client_(std::move(client)), overdue_ns_(overdue_ns) {}
  ~DriverPins();
  DriverPins(const DriverPins&) = delete;
  DriverPins& operator=(const DriverPins&) = delete;

  // Returns false if the memory is not pinned: the driver refuses or hangs, or the plugin cannot.
  // Drops `kept`, which keeps the pages, before it returns, unless the driver hangs: then it is
  // dropped once the driver goes on and has unpinned them, and never if the driver refuses that.
  bool Pin(char* start, size_t bytes, std::shared_ptr<const void> kept);
  // Is told once whether the pages are unpinned, on the thread of the driver's calls. Until it is
  // told that they are, they must neither move nor be unmapped: the driver would take another
  // mapping in their place for pinned, and copy from the old pages. False: the driver refuses, so
  // they may be pinned for ever.
  using OnUnpinned = std::function<void(bool is_unpinned)>;
  // Ends what Pin of `start` began. Returns false unless `on_unpinned` has been told true by then.
  // If the driver hangs, it is told after the return, once the driver goes on.
  bool Unpin(char* start, OnUnpinned on_unpinned);

  const std::shared_ptr<const Client>& client() const { return client_; }

 private:
  class Call;
  class PinCall;
  class UnpinCall;

  const std::shared_ptr<const Client> client_;
  const int64_t overdue_ns_;
  std::unique_ptr<DriverThread> thread_ = std::make_unique<DriverThread>("pin-memory");
};

}  // namespace millpond::pjrt
