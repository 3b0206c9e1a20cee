#include "native/pjrt/plugin.h"

#include <dlfcn.h>

#include <cstddef>
#include <string_view>

namespace millpond::pjrt {
namespace {

// The size of the table of functions up to the last one that this program calls. A plugin may be
// older than the header, and then its table ends earlier.
constexpr size_t kNeededTableBytes =
    offsetof(PJRT_Api, PJRT_Client_TopologyDescription) + sizeof(void*);

bool HasAttribute(const Api& api, std::string_view name) {
  MILLPOND_PJRT_ARGS(PJRT_Plugin_Attributes, attributes);
  if (!api.ToStatus(api->PJRT_Plugin_Attributes(&attributes), "").ok()) return false;
  for (size_t i = 0; i < attributes.num_attributes; ++i) {
    const PJRT_NamedValue& attribute = attributes.attributes[i];
    if (std::string_view(attribute.name, attribute.name_size) == name) return true;
  }
  return false;
}

}  // namespace

base::StatusOr<Plugin> Plugin::Open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return base::NotFound("the accelerator's plugin cannot be opened: " + std::string(dlerror()));
  }
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* const table = get == nullptr ? nullptr : get();
  if (table == nullptr) {
    return base::FailedPrecondition(path +
                                    " is no PJRT plugin: it does not define GetPjrtApi; give the "
                                    "plugin's own library, like xla_cuda_plugin.so");
  }
  const std::string version = std::to_string(table->pjrt_api_version.major_version) + "." +
                              std::to_string(table->pjrt_api_version.minor_version);
  if (table->pjrt_api_version.major_version != PJRT_API_MAJOR ||
      table->struct_size < kNeededTableBytes) {
    return base::FailedPrecondition(
        path + " has version " + version + " of the PJRT C API, and this server needs " +
        std::to_string(PJRT_API_MAJOR) + ".54 or newer: install another version of the plugin");
  }
  const Api api(table);
  MILLPOND_PJRT_ARGS(PJRT_Plugin_Initialize, initialize);
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Plugin_Initialize(&initialize),
                                "initializing " + path);
  const size_t folder_end = path.rfind('/');
  return Plugin(
      api,
      path.substr(folder_end == std::string::npos ? 0 : folder_end + 1) + " (API " + version + ")",
      HasAttribute(api, "cuda_version"));
}

}  // namespace millpond::pjrt
