#include "native/servable/serving_map.h"

#include <optional>
#include <utility>

#include "native/base/listing.h"
#include "native/servable/batching_servable.h"

namespace millpond::servable {
namespace {

base::Status NameNotFound(std::string_view name, const ServableStreams& streams) {
  base::Listing list;
  for (const auto& [available, stream] : streams) {
    if (!stream.versions.empty()) list.Add(available);
  }
  return base::NotFound("Servable not found for request: Latest(" + std::string(name) +
                        "); available models:" + list.text());
}

// Returns the choice of the default version in place of version 0, unless the model is known to
// have a version 0. OpenVINO's ovmsclient sends 0 for the default version.
VersionChoice WithoutZero(const VersionChoice& choice, const ServableStream& stream,
                          const ModelNotes& notes) {
  if (choice.version != 0 || stream.versions.count(0) > 0 || notes.Find(0) != nullptr)
    return choice;
  return {std::nullopt, std::nullopt, choice.metadata};
}

}  // namespace

ServingMap::ServingMap() : snapshot_(std::make_unique<const ServableStreams>()) {}

base::StatusOr<ServableHandle> ServingMap::LookUp(std::string_view name,
                                                  const VersionChoice& choice) {
  ServableHandle handle = snapshot_.Read([&](const ServableStreams& streams) {
    const auto stream = streams.find(name);
    ServableEntry* const entry = stream == streams.end() ? nullptr : stream->second.Find(choice);
    return entry == nullptr ? ServableHandle() : ServableHandle(entry);
  });
  if (handle) return handle;
  return LookUpWithNotes(name, choice);
}

// Reads the notes before the map. The control plane publishes a version before it removes the note
// that awaits the version. So a look-up sees the note, or the version, or both.
base::StatusOr<ServableHandle> ServingMap::LookUpWithNotes(std::string_view name,
                                                           const VersionChoice& choice) {
  const std::shared_ptr<const ModelNotes> found = notes_.Find(name);
  const ModelNotes notes = found == nullptr ? ModelNotes() : *found;
  return snapshot_.Read([&](const ServableStreams& streams) -> base::StatusOr<ServableHandle> {
    const auto place = streams.find(name);
    if (place == streams.end() && found == nullptr) return NameNotFound(name, streams);
    const ServableStream none;
    const ServableStream& stream = place == streams.end() ? none : place->second;
    const VersionChoice meant = WithoutZero(choice, stream, notes);
    ServableEntry* const entry = stream.Find(meant);
    if (entry != nullptr) return ServableHandle(entry);
    return stream.WhyNotFound(name, meant, notes);
  });
}

base::Status ServingMap::Publish(std::shared_ptr<ServableEntry> entry, Routing routing) {
  MILLPOND_RETURN_IF_ERROR(CheckRouting(routing));
  const std::lock_guard<std::mutex> lock(write_mutex_);
  const ServableId& id = entry->id();
  std::unique_ptr<ServableStreams> next = Copy();
  ServableStream& changed = (*next)[id.name];
  changed.routing = std::move(routing);
  if (!changed.versions.emplace(id.version, entry).second) {
    return {base::Code::kAlreadyExists, id.name + " version " + std::to_string(id.version) +
                                            " is published already; retire it first"};
  }
  MILLPOND_RETURN_IF_ERROR(entry->MarkPublished());
  if (const BatchingServable* const batching = entry->servable().batching()) {
    batches_.Add(batching->ForQueues());
  }
  snapshot_.Write(std::move(next));
  changes_.Count(id.name);
  return {};
}

base::Status ServingMap::Retire(const std::string& name, int64_t version, Routing routing) {
  MILLPOND_RETURN_IF_ERROR(CheckRouting(routing));
  const std::lock_guard<std::mutex> lock(write_mutex_);
  std::unique_ptr<ServableStreams> next = Copy();
  const auto stream = next->find(name);
  if (stream == next->end()) return NameNotFound(name, *next);
  auto& versions = stream->second.versions;
  const auto found = versions.find(version);
  if (found == versions.end()) return stream->second.WhyNotFound(name, {version}, {});
  const std::shared_ptr<ServableEntry> entry = std::move(found->second);
  versions.erase(found);
  stream->second.routing = std::move(routing);
  if (stream->second.IsEmpty()) next->erase(stream);
  snapshot_.Write(std::move(next));
  if (const BatchingServable* const batching = entry->servable().batching()) {
    batches_.Remove(batching->ForQueues());
  }
  entry->MarkRetired();
  return {};
}

base::Status ServingMap::SetRouting(const std::string& name, Routing routing) {
  MILLPOND_RETURN_IF_ERROR(CheckRouting(routing));
  const std::lock_guard<std::mutex> lock(write_mutex_);
  std::unique_ptr<ServableStreams> next = Copy();
  ServableStream& stream = (*next)[name];
  stream.routing = std::move(routing);
  if (stream.IsEmpty()) next->erase(name);
  snapshot_.Write(std::move(next));
  changes_.Count(name);
  return {};
}

void ServingMap::SetNotes(const std::string& name, ModelNotes notes) {
  if (notes_.Set(name, std::move(notes))) changes_.Count(name);
}

bool ServingMap::Refuses(std::string_view name) const {
  const std::shared_ptr<const ModelNotes> found = notes_.Find(name);
  return found != nullptr && found->is_refused;
}

std::vector<std::shared_ptr<ServableEntry>> ServingMap::Entries() {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  std::vector<std::shared_ptr<ServableEntry>> entries;
  for (const auto& [name, stream] : snapshot_.Latest()) {
    for (const auto& [version, entry] : stream.versions) entries.push_back(entry);
  }
  return entries;
}

bool ServingMap::Has(std::string_view name) {
  return snapshot_.Read([&](const ServableStreams& streams) {
    const auto stream = streams.find(name);
    return stream != streams.end() && !stream->second.versions.empty();
  });
}

std::vector<int64_t> ServingMap::Versions(std::string_view name) {
  return snapshot_.Read([&](const ServableStreams& streams) {
    std::vector<int64_t> versions;
    const auto stream = streams.find(name);
    if (stream == streams.end()) return versions;
    for (const auto& [version, entry] : stream->second.versions) versions.push_back(version);
    return versions;
  });
}

}  // namespace millpond::servable
