#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "native/base/status.h"

namespace millpond::servable {

// How the requests for one name that say no version number find one. The control plane decides it
// (`Routing` in serving/servable.py), the serving map follows it.
struct Routing {
  // None, or not published: requests without version and label find nothing.
  std::optional<int64_t> default_version = {};
  std::map<std::string, int64_t, std::less<>> labels = {};
  // Gets `canary_weight` of the requests without version and label, while it is published.
  std::optional<int64_t> canary_version = {};
  double canary_weight = 0;  // from 0 to 1
  // The key of the requests' metadata by whose value they keep to one side, on every server of a
  // fleet; "", or a request without it: at random.
  std::string canary_header = {};

  // Whether a request finds what it would find without a routing.
  bool IsDefault() const { return !default_version && labels.empty() && !canary_version; }
  bool HasCanary() const { return canary_version.has_value() && canary_weight > 0; }
};

// INVALID_ARGUMENT where the weight is no share, or the header no key of gRPC's metadata.
base::Status CheckRouting(const Routing& routing);

// The metadata that a request came with. Read only where a canary goes by it.
class RequestMetadata {
 public:
  // The value of a key in lower case, or none. Lives as long as the request.
  virtual std::optional<std::string_view> Find(std::string_view key) const = 0;

 protected:
  ~RequestMetadata() = default;
};

// What a request says of the version that it wants. Borrows all that it points to.
struct VersionChoice {
  // At most one of these two; neither: the routing's default, or the canary.
  std::optional<int64_t> version = {};
  std::optional<std::string_view> label = {};
  // Null: the canary does not answer this request.
  const RequestMetadata* metadata = nullptr;
};

// Whether the canary answers a request that says neither version nor label. For a routing that has
// one. Any thread; no lock and no system call.
bool IsForCanary(const Routing& routing, const RequestMetadata& metadata);

}  // namespace millpond::servable
