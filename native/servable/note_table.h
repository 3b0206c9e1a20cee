#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "native/servable/model_notes.h"

namespace millpond::servable {

// The notes of each configured model. They are kept apart from the serving map's snapshot, because
// each snapshot copies all models. A start with thousands of models changes notes tens of thousands
// of times.
//
// Thread: any may read. Writers must have at least the priority of request threads, because a
// reader may wait for their lock. The lock is held briefly, and only look-ups that have failed take
// it.
class NoteTable {
 public:
  // Replaces the notes of `name`; empty notes remove the entry. Returns true if the old notes await
  // a version that the new notes do not.
  bool Set(const std::string& name, ModelNotes notes);

  // Returns the notes of `name`, or null if the name has no notes.
  std::shared_ptr<const ModelNotes> Find(std::string_view name) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const ModelNotes>, std::less<>> notes_;
};

}  // namespace millpond::servable
