#include "native/pjrt/accelerator.h"

#include <array>
#include <vector>

namespace millpond::pjrt {
namespace {

// xla.CompileOptionsProto { executable_build_options { device_ordinal: -1 num_replicas: 1
// num_partitions: 1 } }: one device, which the client chooses.
constexpr std::array<unsigned char, 17> kCompileOptions = {0x1a, 0x0f, 0x08, 0xff, 0xff, 0xff,
                                                           0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                                           0x01, 0x20, 0x01, 0x28, 0x01};

PJRT_NamedValue NamedValue(std::string_view name) {
  PJRT_NamedValue value{};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  value.name = name.data();
  value.name_size = name.size();
  value.value_size = 1;
  return value;
}

// Memory is taken as it is needed, so that a server does not take a GPU from its neighbours.
std::vector<PJRT_NamedValue> CudaOptions(const AcceleratorOptions& options) {
  PJRT_NamedValue fraction = NamedValue("memory_fraction");
  fraction.type = PJRT_NamedValue_kFloat;
  fraction.float_value = options.memory_fraction;
  PJRT_NamedValue preallocate = NamedValue("preallocate");
  preallocate.type = PJRT_NamedValue_kBool;
  preallocate.bool_value = false;
  return {fraction, preallocate};
}

}  // namespace

base::StatusOr<std::shared_ptr<Accelerator>> Accelerator::Make(const Plugin& plugin,
                                                               const AcceleratorOptions& options) {
  const Api& api = plugin.api();
  std::vector<PJRT_NamedValue> client_options;
  if (plugin.is_cuda()) client_options = CudaOptions(options);
  MILLPOND_PJRT_ARGS(PJRT_Client_Create, create);
  create.create_options = client_options.data();
  create.num_options = client_options.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Client_Create(&create),
                                "making a client of " + plugin.description());
  std::shared_ptr<Accelerator> accelerator(new Accelerator(plugin, create.client, options));
  MILLPOND_RETURN_IF_ERROR(accelerator->FindDevice());
  const base::StatusOr<AcceleratorMemory> memory = accelerator->Memory();
  if (memory.ok() && memory.value().limit_bytes > 0) {
    accelerator->memory_.SetLimit(memory.value().limit_bytes);
  }
  return accelerator;
}

Accelerator::~Accelerator() {
  uploads_.reset();  // its thread uses the client
  MILLPOND_PJRT_ARGS(PJRT_Client_Destroy, destroy);
  destroy.client = client_;
  static_cast<void>(api_.ToStatus(api_->PJRT_Client_Destroy(&destroy), "freeing a client"));
}

base::Status Accelerator::FindDevice() {
  MILLPOND_PJRT_ARGS(PJRT_Client_AddressableDevices, devices);
  devices.client = client_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_AddressableDevices(&devices),
                                "listing the devices of " + description_);
  if (devices.num_addressable_devices == 0) {
    return base::NotFound(description_ + " finds no device");
  }
  device_ = devices.addressable_devices[0];
  MILLPOND_PJRT_ARGS(PJRT_Client_PlatformVersion, version);
  version.client = client_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_PlatformVersion(&version),
                                "asking for the version of " + description_);
  MILLPOND_PJRT_ARGS(PJRT_Device_GetDescription, device);
  device.device = device_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Device_GetDescription(&device),
                                "asking for the device of " + description_);
  MILLPOND_PJRT_ARGS(PJRT_DeviceDescription_Kind, kind);
  kind.device_description = device.device_description;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_DeviceDescription_Kind(&kind),
                                "asking for the device of " + description_);
  description_ += " " + std::string(version.platform_version, version.platform_version_size) +
                  ", " + std::string(kind.device_kind, kind.device_kind_size);
  return {};
}

base::StatusOr<std::unique_ptr<Executable>> Accelerator::Compile(std::string_view hlo) const {
  constexpr std::string_view kFormat = "hlo";
  std::string code(hlo);  // the API takes it as writable
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  MILLPOND_PJRT_ARGS(PJRT_Client_Compile, compile);
  compile.client = client_;
  compile.program = &program;
  compile.compile_options = reinterpret_cast<const char*>(kCompileOptions.data());
  compile.compile_options_size = kCompileOptions.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_Compile(&compile),
                                "compiling for " + description_);
  return Executable::Own(api_, compile.executable);
}

base::StatusOr<std::unique_ptr<Executable>> Accelerator::LoadExecutable(
    std::string_view serialized) const {
  MILLPOND_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad, load);
  load.client = client_;
  load.serialized_executable = serialized.data();
  load.serialized_executable_size = serialized.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Executable_DeserializeAndLoad(&load),
                                "loading an executable");
  return Executable::Own(api_, load.loaded_executable);
}

base::StatusOr<DeviceBuffer> Accelerator::StartUpload(const HostTensor& tensor,
                                                      PJRT_Event** copied) const {
  MILLPOND_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer, upload);
  upload.client = client_;
  upload.data = tensor.elements;
  upload.type = tensor.type;
  upload.dims = tensor.dims.data();
  upload.num_dims = tensor.dims.size();
  upload.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  upload.device = device_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_BufferFromHostBuffer(&upload),
                                "copying to the accelerator");
  *copied = upload.done_with_host_buffer;
  return DeviceBuffer(api_, upload.buffer);
}

base::StatusOr<AcceleratorMemory> Accelerator::Memory() const {
  MILLPOND_PJRT_ARGS(PJRT_Device_MemoryStats, statistics);
  statistics.device = device_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Device_MemoryStats(&statistics),
                                "counting the memory of " + description_);
  return AcceleratorMemory{statistics.bytes_in_use,
                           statistics.bytes_limit_is_set ? statistics.bytes_limit : 0};
}

}  // namespace millpond::pjrt
