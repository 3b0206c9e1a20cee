#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/servable/left_right.h"
#include "native/servable/routing.h"
#include "native/servable/servable_entry.h"
#include "native/servable/servable_stream.h"

namespace millpond::servable {

// What requests see now: the published versions of each name, and its routing.
//
// Look-ups are wait-free and pin one version, never the map, so that one slow request delays
// nothing but the unloading of its own version. Publish, Retire and SetRouting are the control
// plane's; they return once every look-up sees the change. None destroys a servable.
class ServingMap {
 public:
  ServingMap();

  // A handle on the version of `name` that `choice` means (ServableStream::Find). Otherwise
  // NOT_FOUND, naming the versions that there are, or INVALID_ARGUMENT, naming the labels.
  base::StatusOr<ServableHandle> LookUp(std::string_view name, const VersionChoice& choice);

  // ALREADY_EXISTS where that version of that name is published, FAILED_PRECONDITION where the
  // entry is being unloaded.
  base::Status Publish(std::shared_ptr<ServableEntry> entry);

  // Once it returns no request can pin the version any more. NOT_FOUND where it is not published.
  base::Status Retire(const std::string& name, int64_t version);

  // Replaces the routing of `name`, all of it at once. It stays through Publish and Retire, and
  // while no version of the name is published; the default routing forgets it. INVALID_ARGUMENT,
  // and nothing changed, where CheckRouting says so.
  base::Status SetRouting(const std::string& name, Routing routing);

  // All that is published. Waits for a change under way: the control plane's.
  std::vector<std::shared_ptr<ServableEntry>> Entries();

  // Ascending; empty where the name has none.
  std::vector<int64_t> Versions(std::string_view name);

 private:
  // Shows requests what streams_ says; the caller holds write_mutex_.
  void Show() { snapshot_.Write(std::make_unique<const ServableStreams>(streams_)); }

  // Of the changes; no look-up takes it.
  std::mutex write_mutex_;
  ServableStreams streams_;  // guarded by write_mutex_: what the next snapshot is made of
  LeftRight<ServableStreams> snapshot_;
};

}  // namespace millpond::servable
