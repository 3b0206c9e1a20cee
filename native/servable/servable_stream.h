#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/servable/model_notes.h"
#include "native/servable/routing.h"
#include "native/servable/servable_entry.h"

namespace millpond::servable {

// The published versions of one name, ascending, and how requests find one of them. A value: what
// one snapshot of the serving map says of the name.
struct ServableStream {
  std::map<int64_t, std::shared_ptr<ServableEntry>> versions;
  Routing routing;

  bool IsEmpty() const { return versions.empty() && routing.IsDefault(); }

  // Returns the version that `choice` means: by its number, by its label, or else the canary for
  // its share, or the default version. Null if that version is not published, or if the routing
  // names no default.
  ServableEntry* Find(const VersionChoice& choice) const;

  // Why Find found nothing for `choice`. INVALID_ARGUMENT for a label that there is not, naming
  // those that there are; UNAVAILABLE if `notes` await the version; else NOT_FOUND, naming the
  // versions and the reason of `notes`, if they have one.
  base::Status WhyNotFound(std::string_view name, const VersionChoice& choice,
                           const ModelNotes& notes) const;
};

// By name. One without versions is kept for its routing.
using ServableStreams = std::map<std::string, ServableStream, std::less<>>;

}  // namespace millpond::servable
