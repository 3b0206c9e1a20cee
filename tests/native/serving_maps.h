#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/servable/serving_map.h"

namespace millpond::servable {

// Routes requests without version and label to the highest of `versions`.
inline Routing HighestOf(const std::vector<int64_t>& versions) {
  Routing routing;
  if (!versions.empty()) {
    routing.default_version = *std::max_element(versions.begin(), versions.end());
  }
  return routing;
}

// Publishes `entry`, for tests that need no other routing than the highest version.
inline base::Status PublishHighest(ServingMap& map, std::shared_ptr<ServableEntry> entry) {
  std::vector<int64_t> versions = map.Versions(entry->id().name);
  versions.push_back(entry->id().version);
  return map.Publish(std::move(entry), HighestOf(versions));
}

// Retires a version, for the same tests.
inline base::Status RetireVersion(ServingMap& map, const std::string& name, int64_t version) {
  std::vector<int64_t> versions = map.Versions(name);
  versions.erase(std::remove(versions.begin(), versions.end(), version), versions.end());
  return map.Retire(name, version, HighestOf(versions));
}

}  // namespace millpond::servable
