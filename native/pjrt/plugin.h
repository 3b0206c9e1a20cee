#pragma once

#include <string>

#include "native/base/status.h"
#include "native/pjrt/api.h"

namespace millpond::pjrt {

// A plugin: the shared library that compiles programs for the accelerators of one maker, and runs
// them.
class Plugin {
 public:
  // Opens the library at `path` and initializes it. Opening a library twice gives the same plugin.
  // Returns NOT_FOUND if the library or one that it needs cannot be opened, and FAILED_PRECONDITION
  // if it is no plugin, has another major version of the API, or is too old for this program.
  static base::StatusOr<Plugin> Open(const std::string& path);

  const Api& api() const { return api_; }
  // The path, and the version of the API, like "xla_cuda_plugin.so (API 0.115)".
  const std::string& description() const { return description_; }
  // The build of the plugin: a program that one build compiled is loaded by the same build only. It
  // is the same on all machines.
  const std::string& build() const { return build_; }
  // True if the plugin takes the options of CUDA's client.
  bool is_cuda() const { return is_cuda_; }

 private:
  Plugin(const Api& api, std::string description, std::string build, bool is_cuda)
      : api_(api),
        description_(std::move(description)),
        build_(std::move(build)),
        is_cuda_(is_cuda) {}

  Api api_;
  std::string description_;
  std::string build_;
  bool is_cuda_;
};

}  // namespace millpond::pjrt
