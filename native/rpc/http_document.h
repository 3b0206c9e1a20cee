#pragma once

#include <string>

namespace millpond::rpc {

// An answer that is made before it is asked for: JSON that no cache may keep.
struct HttpDocument {
  int status = 200;
  std::string body;
};

}  // namespace millpond::rpc
