#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace millpond::servable {

// The reason why one version that is not published cannot be reached.
struct VersionNote {
  std::string reason;
  bool is_awaited = false;  // requests may wait for it: it is the model's first, and is loading
};

// The reasons why requests for a configured model find no version. A value: the control plane
// writes it when something changes. It is read only after a look-up has failed.
struct ModelNotes {
  std::string reason;       // why no version is published; "" if not known
  bool is_awaited = false;  // requests without a version number may wait for the first version
  std::map<int64_t, VersionNote> versions;
  // Requests get UNAVAILABLE at once: the model's version crashed the server, and waits for its
  // next try.
  bool is_refused = false;

  // True if any version may come, because the base path has not been read yet.
  bool AwaitsAny() const { return is_awaited && versions.empty(); }

  bool IsEmpty() const { return reason.empty() && !is_awaited && !is_refused && versions.empty(); }

  // True if these notes await a version that `later` does not await.
  bool AwaitMoreThan(const ModelNotes& later) const {
    if (is_awaited && !later.is_awaited) return true;
    if (AwaitsAny() && !later.AwaitsAny()) return true;
    for (const auto& [version, note] : versions) {
      const VersionNote* const now = later.Find(version);
      if (note.is_awaited && (now == nullptr || !now->is_awaited)) return true;
    }
    return false;
  }

  const VersionNote* Find(int64_t version) const {
    const auto found = versions.find(version);
    return found == versions.end() ? nullptr : &found->second;
  }
};

}  // namespace millpond::servable
