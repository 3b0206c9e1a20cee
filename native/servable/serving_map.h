#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/status.h"
#include "native/servable/awaited_change.h"
#include "native/servable/batch_registry.h"
#include "native/servable/left_right.h"
#include "native/servable/note_table.h"
#include "native/servable/routing.h"
#include "native/servable/servable_entry.h"
#include "native/servable/servable_stream.h"

namespace millpond::servable {

// The published versions of each name, and its routing, as requests see them now.
//
// A look-up is wait-free if it finds a version at once. Otherwise it also takes the short lock of
// the notes (NoteTable). A look-up pins one version and never the map, so that a slow request
// delays only the unloading of its own version.
//
// The control plane calls Publish, Retire and SetRouting. Each of them returns once every look-up
// sees the change. None of them destroys a servable.
//
// Each change is one snapshot: a version comes or goes together with the routing that fits the
// versions published then. So no look-up sees a version before the control plane has decided which
// requests it answers.
class ServingMap {
 public:
  ServingMap();

  // Returns a handle on the version of `name` that `choice` means (ServableStream::Find). Number 0
  // means the default version if the model is not known to have a version 0. Otherwise
  // returns NOT_FOUND, naming the published versions, or INVALID_ARGUMENT, naming the known labels.
  // Returns UNAVAILABLE if the version is the first of its model and is being loaded. A caller that
  // called MarkChange before this look-up may wait until HasCome returns true, and look up again.
  base::StatusOr<ServableHandle> LookUp(std::string_view name, const VersionChoice& choice);

  // Publishes `entry` and replaces the routing of its name. Returns ALREADY_EXISTS if that version
  // of the name is published, FAILED_PRECONDITION if the entry is being unloaded, and
  // INVALID_ARGUMENT if CheckRouting refuses `routing`. After an error nothing has changed.
  base::Status Publish(std::shared_ptr<ServableEntry> entry, Routing routing);

  // Retires the version and replaces the routing of its name. Once it returns, no request can pin
  // the version any more. Returns NOT_FOUND if the version is not published, and INVALID_ARGUMENT
  // if CheckRouting refuses `routing`. After an error nothing has changed.
  base::Status Retire(const std::string& name, int64_t version, Routing routing);

  // Replaces the whole routing of `name` at once. The routing is kept while no version of the name
  // is published; setting the default routing removes it. Returns INVALID_ARGUMENT if CheckRouting
  // refuses it. After an error nothing has changed.
  base::Status SetRouting(const std::string& name, Routing routing);

  // Replaces the notes about the versions of `name` that are not published. Empty notes remove the
  // entry.
  void SetNotes(const std::string& name, ModelNotes notes);

  // Returns true if a look-up of `name` that returns UNAVAILABLE should not be waited for.
  bool Refuses(std::string_view name) const;

  // Returns a mark of this instant, for a look-up of `name` that follows.
  AwaitedChange MarkChange(std::string_view name) const { return changes_.Mark(name); }

  // The published versions whose requests may share runs, for the queues of requests.
  BatchRegistry& batches() { return batches_; }

  // Returns all published entries. It waits for a change under way, so it is for the control plane
  // only.
  std::vector<std::shared_ptr<ServableEntry>> Entries();

  // True if `name` has a published version. Wait-free.
  bool Has(std::string_view name);

  // Returns the published versions of `name`, ascending. The list is empty if the name has no
  // versions.
  std::vector<int64_t> Versions(std::string_view name);

 private:
  // Returns a copy of the streams as look-ups see them, to be changed and written. What throws
  // until it is written changes nothing. The caller holds write_mutex_.
  std::unique_ptr<ServableStreams> Copy() const {
    return std::make_unique<ServableStreams>(snapshot_.Latest());
  }
  // Looks up again after a look-up that found no version, and explains a failure with the notes.
  base::StatusOr<ServableHandle> LookUpWithNotes(std::string_view name,
                                                 const VersionChoice& choice);

  // Held by changes; no look-up takes it.
  std::mutex write_mutex_;
  LeftRight<ServableStreams> snapshot_;  // written under write_mutex_
  BatchRegistry batches_;                // changed under write_mutex_
  NoteTable notes_;
  ChangeCounters changes_;
};

}  // namespace millpond::servable
