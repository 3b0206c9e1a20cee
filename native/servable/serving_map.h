#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/servable/awaited_change.h"
#include "native/servable/left_right.h"
#include "native/servable/note_table.h"
#include "native/servable/routing.h"
#include "native/servable/servable_entry.h"
#include "native/servable/servable_stream.h"

namespace millpond::servable {

// What requests see now: the published versions of each name, and its routing.
//
// Look-ups are wait-free and pin one version, never the map, so that one slow request delays
// nothing but the unloading of its own version. Publish, Retire and SetRouting are the control
// plane's; they return once every look-up sees the change. None destroys a servable.
//
// Each change is one snapshot: a version comes or goes together with the routing that fits what is
// published then. So no look-up sees a version before it is decided what the version may answer.
class ServingMap {
 public:
  ServingMap();

  // A handle on the version of `name` that `choice` means (ServableStream::Find). Otherwise
  // NOT_FOUND, naming the versions that there are, or INVALID_ARGUMENT, naming the labels.
  // UNAVAILABLE if the version is the first of its model and is being loaded: a caller that has
  // called MarkChange before may wait until it HasCome, and look again.
  base::StatusOr<ServableHandle> LookUp(std::string_view name, const VersionChoice& choice);

  // Publishes `entry` and replaces the routing of its name. ALREADY_EXISTS if that version of that
  // name is published, FAILED_PRECONDITION if the entry is being unloaded, INVALID_ARGUMENT if
  // CheckRouting refuses `routing`; then nothing has changed.
  base::Status Publish(std::shared_ptr<ServableEntry> entry, Routing routing);

  // Retires the version and replaces the routing of its name. Once it returns no request can pin
  // the version any more. NOT_FOUND if it is not published, INVALID_ARGUMENT if CheckRouting
  // refuses `routing`; then nothing has changed.
  base::Status Retire(const std::string& name, int64_t version, Routing routing);

  // Replaces the routing of `name`, all of it at once. It is kept while no version of the name is
  // published; the default routing ends that. INVALID_ARGUMENT if CheckRouting refuses it; then
  // nothing has changed.
  base::Status SetRouting(const std::string& name, Routing routing);

  // Replaces what is known of the versions of `name` that are not published; empty notes forget it.
  void SetNotes(const std::string& name, ModelNotes notes);

  // The mark of this instant, for a look-up of `name` that follows.
  AwaitedChange MarkChange(std::string_view name) const { return changes_.Mark(name); }

  // All that is published. Waits for a change under way: the control plane's.
  std::vector<std::shared_ptr<ServableEntry>> Entries();

  // Ascending; empty where the name has none.
  std::vector<int64_t> Versions(std::string_view name);

 private:
  // Shows requests what streams_ says; the caller holds write_mutex_.
  void Show() { snapshot_.Write(std::make_unique<const ServableStreams>(streams_)); }
  // The look-up after one that found nothing.
  base::StatusOr<ServableHandle> LookUpWithNotes(std::string_view name,
                                                 const VersionChoice& choice);

  // Of the changes; no look-up takes it.
  std::mutex write_mutex_;
  ServableStreams streams_;  // guarded by write_mutex_: what the next snapshot is made of
  LeftRight<ServableStreams> snapshot_;
  NoteTable notes_;
  ChangeCounters changes_;
};

}  // namespace millpond::servable
