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

// The published versions of one name, ascending, and the routing of requests to them. A value: the
// part of one snapshot of the serving map that is about this name.
struct ServableStream {
  std::map<int64_t, std::shared_ptr<ServableEntry>> versions;
  Routing routing;

  bool IsEmpty() const { return versions.empty() && routing.IsDefault(); }

  // Returns the version that `choice` means: by its number, by its label, or else the canary for
  // its share, or the default version. Null if that version is not published, or if the routing
  // names no default.
  ServableEntry* Find(const VersionChoice& choice) const;

  // Returns the error for a `choice` for which Find returned null. INVALID_ARGUMENT for an unknown
  // label, naming the known labels. UNAVAILABLE if `notes` await the version. Otherwise NOT_FOUND,
  // naming the published versions and, if known, the reason of `notes`.
  base::Status WhyNotFound(std::string_view name, const VersionChoice& choice,
                           const ModelNotes& notes) const;
};

// All streams by name. A stream without versions is kept if it has a routing.
using ServableStreams = std::map<std::string, ServableStream, std::less<>>;

}  // namespace millpond::servable
