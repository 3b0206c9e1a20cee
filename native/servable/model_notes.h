#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace millpond::servable {

// Why one version that is not published cannot be reached.
struct VersionNote {
  std::string reason;
  bool is_awaited = false;  // requests may wait for it: it is the model's first, and is loading
};

// Why requests for a configured model find no version. A value, written by the control plane when
// something changes and read only after a look-up has failed.
struct ModelNotes {
  std::string reason;       // no version is published; "": not known
  bool is_awaited = false;  // requests without a version number may wait for the first version
  std::map<int64_t, VersionNote> versions;

  bool IsEmpty() const { return reason.empty() && !is_awaited && versions.empty(); }

  const VersionNote* Find(int64_t version) const {
    const auto found = versions.find(version);
    return found == versions.end() ? nullptr : &found->second;
  }
};

}  // namespace millpond::servable
