#pragma once

#include <string_view>

#include "native/rpc/method.h"

namespace millpond::rpc {

// The requests over HTTP that a rung above this one answers, by method and target.
//
// Thread: any, at once. It outlives the server that has it.
class HttpRoutes {
 public:
  virtual ~HttpRoutes() = default;
  // Returns the method that answers a request; null if there is none. `target` is as received.
  virtual const Method* Find(std::string_view http_method, std::string_view target) const = 0;
};

}  // namespace millpond::rpc
