// A PJRT plugin that says it is CUDA's, over another one (loadtest/drive/plugin_over.h).
//
// A compilation that autotunes holds the lock that runs take, as XLA's does, while the file `hold`
// is in the directory PLUGIN_DIRECTORY, and crashes while `crash` is there. Each compilation
// adds a line to the file `compiled` there: "autotuned PID" or "first PID", or "topology PID" for
// one without a client of its process. That one waits while `hold-topology` is there, and crashes
// while `crash-topology` is.
//
// While `lost` is there, runs on the device with the id 1 fail. While `damaged` is there, no
// executable is loaded. While `gone` is there, that fails too, and so does each copy to a device.
//
// Its one topology is that of the plugin below, by whose client it compiles.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string_view>
#include <vector>

#include "loadtest/drive/plugin_over.h"

namespace {

// The tag of CompileOptionsProto.env_option_overrides, in which a server turns autotuning off.
constexpr char kOptionOverrides = 0x3a;

std::mutex lock;

void Log(const char* what) {
  std::ofstream(PathOf("compiled"), std::ios::app) << what << ' ' << getpid() << std::endl;
}

void Autotune() {
  const std::lock_guard<std::mutex> locked(lock);
  Log("autotuned");
  if (IsThere("crash")) std::abort();
  HoldWhile("hold");
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

PJRT_NamedValue Text(const char* name, const char* text) {
  PJRT_NamedValue value{};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  value.name = name;
  value.name_size = std::strlen(name);
  value.type = PJRT_NamedValue_kString;
  value.string_value = text;
  value.value_size = std::strlen(text);
  return value;
}

PJRT_Client* OwnClient() {
  static PJRT_Client* const client = [] {
    PJRT_Client_Create_Args create{};
    create.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE;
    if (over->PJRT_Client_Create(&create) != nullptr) std::abort();
    return create.client;
  }();
  return client;
}

// No one looks into the topology.
PJRT_TopologyDescription* TheTopology() {
  static char place;
  return reinterpret_cast<PJRT_TopologyDescription*>(&place);
}

PJRT_Error* TopologyOf(PJRT_Client_TopologyDescription_Args* args) {
  args->topology = TheTopology();
  return nullptr;
}

PJRT_Error* TopologyAttributes(PJRT_TopologyDescription_Attributes_Args* args) {
  static const PJRT_NamedValue target = Text("target_config", "alike");
  args->attributes = &target;
  args->num_attributes = 1;
  return nullptr;
}

PJRT_Error* CreateTopology(PJRT_TopologyDescription_Create_Args* args) {
  const PJRT_NamedValue& target = args->create_options[0];
  if (std::string_view(target.string_value, target.value_size) != "alike") std::abort();
  args->topology = TheTopology();
  return nullptr;
}

PJRT_Error* DestroyTopology(PJRT_TopologyDescription_Destroy_Args*) { return nullptr; }

PJRT_Error* DescribeDevices(PJRT_TopologyDescription_GetDeviceDescriptions_Args* args) {
  static std::vector<PJRT_DeviceDescription*> descriptions;
  PJRT_Client_AddressableDevices_Args devices{};
  devices.struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE;
  devices.client = OwnClient();
  if (PJRT_Error* const error = over->PJRT_Client_AddressableDevices(&devices)) return error;
  PJRT_Device_GetDescription_Args description{};
  description.struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE;
  description.device = devices.addressable_devices[0];
  if (PJRT_Error* const error = over->PJRT_Device_GetDescription(&description)) return error;
  descriptions = {description.device_description};
  args->descriptions = descriptions.data();
  args->num_descriptions = 1;
  return nullptr;
}

PJRT_Error* CompileForTopology(PJRT_Compile_Args* args) {
  const std::string_view options(args->compile_options, args->compile_options_size);
  if (options.substr(0, 1) != std::string_view(&kOptionOverrides, 1)) std::abort();
  Log("topology");
  if (IsThere("crash-topology")) std::abort();
  HoldWhile("hold-topology");
  const size_t skipped = 2 + static_cast<size_t>(options[1]);
  PJRT_Client_Compile_Args compile{};
  compile.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE;
  compile.client = OwnClient();
  compile.program = args->program;
  compile.compile_options = args->compile_options + skipped;
  compile.compile_options_size = args->compile_options_size - skipped;
  if (PJRT_Error* const error = over->PJRT_Client_Compile(&compile)) return error;
  PJRT_LoadedExecutable_GetExecutable_Args get{};
  get.struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE;
  get.loaded_executable = compile.executable;
  if (PJRT_Error* const error = over->PJRT_LoadedExecutable_GetExecutable(&get)) return error;
  args->executable = get.executable;
  return nullptr;
}

int IdOf(PJRT_LoadedExecutable* executable) {
  PJRT_LoadedExecutable_AddressableDevices_Args devices{};
  devices.struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE;
  devices.executable = executable;
  if (over->PJRT_LoadedExecutable_AddressableDevices(&devices) != nullptr) std::abort();
  PJRT_Device_GetDescription_Args description{};
  description.struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE;
  description.device = devices.addressable_devices[0];
  if (over->PJRT_Device_GetDescription(&description) != nullptr) std::abort();
  PJRT_DeviceDescription_Id_Args id{};
  id.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE;
  id.device_description = description.device_description;
  if (over->PJRT_DeviceDescription_Id(&id) != nullptr) std::abort();
  return id.id;
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (IsThere("lost") && IdOf(args->executable) == 1) {
    // Any error of the plugin below; this one is for arguments without a size.
    PJRT_LoadedExecutable_Execute_Args none{};
    return over->PJRT_LoadedExecutable_Execute(&none);
  }
  const std::lock_guard<std::mutex> locked(lock);
  return over->PJRT_LoadedExecutable_Execute(args);
}

PJRT_Error* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  PJRT_Executable_DeserializeAndLoad_Args none{};
  const bool fails = IsThere("damaged") || IsThere("gone");
  return over->PJRT_Executable_DeserializeAndLoad(fails ? &none : args);
}

PJRT_Error* BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  PJRT_Client_BufferFromHostBuffer_Args none{};
  return over->PJRT_Client_BufferFromHostBuffer(IsThere("gone") ? &none : args);
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = [] {
    PJRT_Api copy = LoadOver();
    copy.PJRT_Plugin_Attributes = Attributes;
    copy.PJRT_Client_Create = CreateClient;
    copy.PJRT_Client_Compile = Compile;
    copy.PJRT_Client_TopologyDescription = TopologyOf;
    copy.PJRT_TopologyDescription_Attributes = TopologyAttributes;
    copy.PJRT_TopologyDescription_Create = CreateTopology;
    copy.PJRT_TopologyDescription_Destroy = DestroyTopology;
    copy.PJRT_TopologyDescription_GetDeviceDescriptions = DescribeDevices;
    copy.PJRT_Compile = CompileForTopology;
    copy.PJRT_Client_BufferFromHostBuffer = BufferFromHostBuffer;
    copy.PJRT_LoadedExecutable_Execute = Execute;
    copy.PJRT_Executable_DeserializeAndLoad = DeserializeAndLoad;
    return copy;
  }();
  return &table;
}
