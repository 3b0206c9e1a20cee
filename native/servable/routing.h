#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/status.h"

namespace millpond::servable {

// The rules by which requests for one name without a version number find a version. The control
// plane decides them (`Routing` in serving/core/servable.py), and the serving map applies them.
struct Routing {
  // If it is empty or not published, requests without version and label find no version.
  std::optional<int64_t> default_version = {};
  std::map<std::string, int64_t, std::less<>> labels = {};
  // While it is published, it gets `canary_weight` of the requests without version and label.
  std::optional<int64_t> canary_version = {};
  double canary_weight = 0;  // from 0 to 1
  // The metadata key by which requests stick to the canary or to the default version. Requests with
  // the same value go the same way on each server of a fleet. If it is "", or if a request lacks
  // the key, the choice is random.
  std::string canary_header = {};
  // Labels that lead nowhere yet, with the versions that they are to lead to.
  std::map<std::string, int64_t, std::less<>> awaited_labels = {};

  // True if requests are routed as if no routing had been set.
  bool IsDefault() const {
    return !default_version && labels.empty() && !canary_version && awaited_labels.empty();
  }
  bool HasCanary() const { return canary_version.has_value() && canary_weight > 0; }
};

// Returns INVALID_ARGUMENT if the weight is not from 0 to 1, or if the header is not a key of
// gRPC's metadata.
base::Status CheckRouting(const Routing& routing);

// The metadata of a request. It is read only if the canary is chosen by a header.
class RequestMetadata {
 public:
  // Returns the value of `key`, which is in lower case, or nullopt. The value lives as long as the
  // request.
  virtual std::optional<std::string_view> Find(std::string_view key) const = 0;

 protected:
  ~RequestMetadata() = default;
};

// The version that a request names. Borrows all that it points to.
struct VersionChoice {
  // At most one of these two is set. If neither is set, the routing's default version or its canary
  // answers.
  std::optional<int64_t> version = {};
  std::optional<std::string_view> label = {};
  // If it is null, the canary does not answer this request.
  const RequestMetadata* metadata = nullptr;
};

// True if the canary answers a request that names neither version nor label. Requires a routing
// with a canary. Any thread; no lock and no system call.
bool IsForCanary(const Routing& routing, const RequestMetadata& metadata);

}  // namespace millpond::servable
