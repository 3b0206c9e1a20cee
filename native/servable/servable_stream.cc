#include "native/servable/servable_stream.h"

#include <utility>

#include "native/base/listing.h"

namespace millpond::servable {
namespace {

ServableEntry* FindVersion(const ServableStream& stream, int64_t version) {
  const auto found = stream.versions.find(version);
  return found == stream.versions.end() ? nullptr : found->second.get();
}

ServableEntry* FindLabel(const ServableStream& stream, std::string_view label) {
  const auto found = stream.routing.labels.find(label);
  return found == stream.routing.labels.end() ? nullptr : FindVersion(stream, found->second);
}

// Returns the version for a request without number and label. It is always a version that the
// routing names, because the control plane decides which published version may answer.
ServableEntry* FindRouted(const ServableStream& stream, const RequestMetadata* metadata) {
  const Routing& routing = stream.routing;
  if (metadata != nullptr && routing.HasCanary()) {
    ServableEntry* const canary = FindVersion(stream, *routing.canary_version);
    if (canary != nullptr && IsForCanary(routing, *metadata)) return canary;
  }
  return routing.default_version ? FindVersion(stream, *routing.default_version) : nullptr;
}

std::string ListVersions(const ServableStream& stream) {
  base::Listing list;
  for (const auto& [version, entry] : stream.versions) list.Add(std::to_string(version));
  return list.text();
}

// Returns the version that a label leads to, or is to lead to; null for an unknown label.
const int64_t* FindTarget(const Routing& routing, std::string_view label) {
  for (const auto* labels : {&routing.labels, &routing.awaited_labels}) {
    const auto found = labels->find(label);
    if (found != labels->end()) return &found->second;
  }
  return nullptr;
}

std::string ListLabels(const Routing& routing) {
  base::Listing list;
  for (const auto* labels : {&routing.labels, &routing.awaited_labels}) {
    for (const auto& [label, version] : *labels) list.Add(label);
  }
  return list.text();
}

// Returns the reason as the end of a message, or "".
std::string Because(const std::string& reason) { return reason.empty() ? "" : "; " + reason; }

base::Status Awaited(std::string_view name, const std::string& reason) {
  return {base::Code::kUnavailable, "model '" + std::string(name) + "': " + reason};
}

base::Status VersionNotFound(std::string_view name, int64_t version, const std::string& points,
                             const ServableStream& stream, const ModelNotes& notes) {
  const VersionNote* const note = notes.Find(version);
  if (note != nullptr && note->is_awaited) return Awaited(name, note->reason);
  if (notes.AwaitsAny() || notes.is_refused) return Awaited(name, notes.reason);
  return base::NotFound("Servable not found for request: Specific(" + std::string(name) + ", " +
                        std::to_string(version) + ")" + points +
                        "; available versions:" + ListVersions(stream) +
                        Because(note == nullptr ? notes.reason : note->reason));
}

base::Status UnknownLabel(std::string_view name, const std::string& label, const Routing& routing) {
  const std::string unknown = "Unrecognized servable version label: " + label;
  const std::string model = "model '" + std::string(name) + "'";
  if (routing.labels.empty() && routing.awaited_labels.empty()) {
    return base::InvalidArgument(unknown + "; " + model +
                                 " has no labels: give it one with version_labels in its "
                                 "configuration, or request a version, or neither");
  }
  return base::InvalidArgument(unknown + "; labels of " + model + ":" + ListLabels(routing) +
                               "; request one of them, a version, or neither");
}

}  // namespace

ServableEntry* ServableStream::Find(const VersionChoice& choice) const {
  if (choice.version) return FindVersion(*this, *choice.version);
  if (choice.label) return FindLabel(*this, *choice.label);
  return FindRouted(*this, choice.metadata);
}

base::Status ServableStream::WhyNotFound(std::string_view name, const VersionChoice& choice,
                                         const ModelNotes& notes) const {
  if (choice.version) return VersionNotFound(name, *choice.version, "", *this, notes);
  if (notes.is_awaited || notes.is_refused) return Awaited(name, notes.reason);
  if (!choice.label) {
    const char* const reason =
        versions.empty() ? "" : "; no version answers requests that name neither version nor label";
    return base::NotFound("Servable not found for request: Latest(" + std::string(name) + ")" +
                          reason + "; available versions:" + ListVersions(*this) +
                          Because(notes.reason));
  }
  const std::string label(*choice.label);
  if (const int64_t* const version = FindTarget(routing, label)) {
    return VersionNotFound(name, *version, ", to which version label '" + label + "' points", *this,
                           notes);
  }
  return UnknownLabel(name, label, routing);
}

}  // namespace millpond::servable
