// A PJRT plugin that says it is CUDA's, over the plugin whose path is in CUDA_LIKE_OVER.
//
// A compilation that autotunes holds the lock that runs take, as XLA's does, while the file `hold`
// is in the directory CUDA_LIKE_DIRECTORY, and crashes while `crash` is there. Each compilation
// adds a line to the file `compiled` there: "autotuned PID" or "first PID".

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace {

// The tag of CompileOptionsProto.env_option_overrides, in which a server turns autotuning off.
constexpr char kOptionOverrides = 0x3a;

const PJRT_Api* over;
std::mutex lock;

std::string PathOf(const char* name) {
  return std::string(std::getenv("CUDA_LIKE_DIRECTORY")) + "/" + name;
}

bool IsThere(const char* name) { return access(PathOf(name).c_str(), F_OK) == 0; }

void Log(const char* what) {
  std::ofstream(PathOf("compiled"), std::ios::app) << what << ' ' << getpid() << std::endl;
}

void Autotune() {
  const std::lock_guard<std::mutex> locked(lock);
  Log("autotuned");
  if (IsThere("crash")) std::abort();
  while (IsThere("hold")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

PJRT_Error* Attributes(PJRT_Plugin_Attributes_Args* args) {
  static PJRT_NamedValue version = [] {
    PJRT_NamedValue value{};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    value.name = "cuda_version";
    value.name_size = std::strlen(value.name);
    value.type = PJRT_NamedValue_kInt64;
    value.int64_value = 13000;
    value.value_size = 1;
    return value;
  }();
  args->attributes = &version;
  args->num_attributes = 1;
  return nullptr;
}

// The plugin below does not know the options of a GPU's client.
PJRT_Error* CreateClient(PJRT_Client_Create_Args* args) {
  args->create_options = nullptr;
  args->num_options = 0;
  return over->PJRT_Client_Create(args);
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  std::string_view options(args->compile_options, args->compile_options_size);
  if (options.substr(0, 1) == std::string_view(&kOptionOverrides, 1)) {
    Log("first");
    options.remove_prefix(2 + static_cast<size_t>(options[1]));
  } else {
    Autotune();
  }
  args->compile_options = options.data();
  args->compile_options_size = options.size();
  return over->PJRT_Client_Compile(args);
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  const std::lock_guard<std::mutex> locked(lock);
  return over->PJRT_LoadedExecutable_Execute(args);
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = [] {
    void* const library = dlopen(std::getenv("CUDA_LIKE_OVER"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    over = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
    PJRT_Api copy{};
    std::memcpy(&copy, over, std::min(over->struct_size, sizeof(copy)));
    copy.struct_size = std::min(over->struct_size, sizeof(copy));
    copy.PJRT_Plugin_Attributes = Attributes;
    copy.PJRT_Client_Create = CreateClient;
    copy.PJRT_Client_Compile = Compile;
    copy.PJRT_LoadedExecutable_Execute = Execute;
    return copy;
  }();
  return &table;
}
