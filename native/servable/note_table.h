#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "native/servable/model_notes.h"

namespace millpond::servable {

// The notes of each configured model. Apart from the serving map's snapshot, because a start with
// thousands of models changes notes tens of thousands of times, and each snapshot copies all
// models.
//
// Thread: any that reads; writers have the priority of request threads or a higher one, because of
// the lock. It is short, and only look-ups that have failed take it.
class NoteTable {
 public:
  // Replaces the notes of `name`; empty notes forget it. True if the old ones await something that
  // the new ones do not.
  bool Set(const std::string& name, ModelNotes notes);

  // The notes of `name`; null if it has none.
  std::shared_ptr<const ModelNotes> Find(std::string_view name) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const ModelNotes>, std::less<>> notes_;
};

}  // namespace millpond::servable
