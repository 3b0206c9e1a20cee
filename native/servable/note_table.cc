#include "native/servable/note_table.h"

#include <utility>

namespace millpond::servable {

bool NoteTable::Set(const std::string& name, ModelNotes notes) {
  // The notes are made, compared and destroyed without the lock.
  auto changed = std::make_shared<const ModelNotes>(std::move(notes));
  std::shared_ptr<const ModelNotes> before = changed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = notes_.try_emplace(name).first;
    found->second.swap(before);
    if (changed->IsEmpty()) notes_.erase(found);
  }
  return before != nullptr && before->AwaitMoreThan(*changed);
}

std::shared_ptr<const ModelNotes> NoteTable::Find(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = notes_.find(name);
  return found == notes_.end() ? nullptr : found->second;
}

}  // namespace millpond::servable
