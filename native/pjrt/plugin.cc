#include "native/pjrt/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace millpond::pjrt {
namespace {

// The size of the table of functions up to the last one that this program calls. A plugin may be
// older than the header, and then its table ends earlier.
constexpr size_t kNeededTableBytes =
    offsetof(PJRT_Api, PJRT_Client_TopologyDescription) + sizeof(void*);

// Returns what the plugin tells about itself, like cuda_version; nothing if it refuses to.
std::vector<PJRT_NamedValue> AttributesOf(const Api& api) {
  MILLPOND_PJRT_ARGS(PJRT_Plugin_Attributes, attributes);
  if (!api.ToStatus(api->PJRT_Plugin_Attributes(&attributes), "").ok()) return {};
  return {attributes.attributes, attributes.attributes + attributes.num_attributes};
}

std::string_view NameOf(const PJRT_NamedValue& attribute) {
  return {attribute.name, attribute.name_size};
}

// Two releases of a plugin may have the same version of the API and the same attributes, so the
// size of the library tells them apart, too.
std::string BuildOf(const std::string& description, const std::string& path,
                    const std::vector<PJRT_NamedValue>& attributes) {
  std::string build = description;
  for (const PJRT_NamedValue& attribute : attributes) {
    if (attribute.type != PJRT_NamedValue_kInt64) continue;
    build += " " + std::string(NameOf(attribute)) + " " + std::to_string(attribute.int64_value);
  }
  std::error_code without_path;
  const auto bytes = std::filesystem::file_size(path, without_path);
  return without_path ? build : build + " of " + std::to_string(bytes) + " bytes";
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
  const std::string description =
      path.substr(folder_end == std::string::npos ? 0 : folder_end + 1) + " (API " + version + ")";
  const std::vector<PJRT_NamedValue> attributes = AttributesOf(api);
  const bool is_cuda = std::any_of(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return NameOf(attribute) == "cuda_version";
  });
  return Plugin(api, description, BuildOf(description, path, attributes), is_cuda);
}

}  // namespace millpond::pjrt
