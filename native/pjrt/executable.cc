#include "native/pjrt/executable.h"

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

base::StatusOr<std::string> Serialize(const Api& api, PJRT_Executable* executable) {
  MILLPOND_PJRT_ARGS(PJRT_Executable_Serialize, serialize);
  serialize.executable = executable;
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Executable_Serialize(&serialize),
                                "serializing an executable");
  std::string bytes(serialize.serialized_bytes, serialize.serialized_bytes_size);
  serialize.serialized_executable_deleter(serialize.serialized_executable);
  return bytes;
}

void Destroy(const Api& api, PJRT_Executable* executable) {
  MILLPOND_PJRT_ARGS(PJRT_Executable_Destroy, destroy);
  destroy.executable = executable;
  static_cast<void>(api.ToStatus(api->PJRT_Executable_Destroy(&destroy), "freeing an executable"));
}

template <typename Look>
base::Status Executable::LookAt(const std::string& while_doing, const Look& look) const {
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, get);
  get.loaded_executable = loaded_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_LoadedExecutable_GetExecutable(&get), while_doing);
  const base::Status looked = look(get.executable);
  Destroy(api_, get.executable);
  return looked;
}

base::StatusOr<std::unique_ptr<Executable>> Executable::Own(const Api& api, DriverPace* pace,
                                                            IsLost is_lost,
                                                            PJRT_LoadedExecutable* loaded) {
  std::unique_ptr<Executable> owner(new Executable(api, pace, std::move(is_lost), loaded));
  constexpr char kDoing[] = "looking at an executable";
  MILLPOND_RETURN_IF_ERROR(owner->LookAt(kDoing, [&](PJRT_Executable* executable) -> base::Status {
    MILLPOND_PJRT_ARGS(PJRT_Executable_NumOutputs, outputs);
    outputs.executable = executable;
    MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Executable_NumOutputs(&outputs), kDoing);
    owner->output_count_ = outputs.num_outputs;
    owner->CountMemory(executable);
    return {};
  }));
  return owner;
}

// Reads what the plugin counts; leaves zeros if it does not.
void Executable::CountMemory(PJRT_Executable* executable) {
  if (!MILLPOND_PJRT_HAS(api_, PJRT_Executable_GetCompiledMemoryStats)) return;
  MILLPOND_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats, statistics);
  statistics.executable = executable;
  const base::Status counted = api_.ToStatus(
      api_->PJRT_Executable_GetCompiledMemoryStats(&statistics), "counting a program's memory");
  if (!counted.ok()) return;
  temporary_bytes_ = statistics.temp_size_in_bytes;
  code_bytes_ = statistics.generated_code_size_in_bytes;
}

Executable::~Executable() {
  if (*is_lost_) {
    KeepForEver(loaded_);
    return;
  }
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_Destroy, destroy);
  destroy.executable = loaded_;
  pace_->Make([&] {
    static_cast<void>(
        api_.ToStatus(api_->PJRT_LoadedExecutable_Destroy(&destroy), "freeing an executable"));
  });
}

base::Status Executable::Run(const std::vector<PJRT_Buffer*>& arguments,
                             std::vector<DeviceBuffer>* outputs,
                             const std::vector<int64_t>& kept) const {
  std::vector<PJRT_Buffer*> results(output_count_, nullptr);
  PJRT_Buffer* const* const argument_list = arguments.data();
  PJRT_Buffer** const output_list = results.data();
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  options.non_donatable_input_indices = kept.data();
  options.num_non_donatable_input_indices = kept.size();
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_Execute, execute);
  execute.executable = loaded_;
  execute.options = &options;
  execute.argument_lists = &argument_list;
  execute.output_lists = &output_list;
  execute.num_devices = 1;
  execute.num_args = arguments.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_LoadedExecutable_Execute(&execute),
                                "running on the accelerator");
  // Threads of many cores read it.
  if (!has_run()) has_run_.store(true, std::memory_order_relaxed);
  for (PJRT_Buffer* const result : results) outputs->emplace_back(api_, result);
  return {};
}

base::StatusOr<std::vector<PJRT_Device*>> Executable::Devices() const {
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices, devices);
  devices.executable = loaded_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_LoadedExecutable_AddressableDevices(&devices),
                                "looking at an executable");
  return std::vector(devices.addressable_devices,
                     devices.addressable_devices + devices.num_addressable_devices);
}

base::StatusOr<std::string> Executable::Serialize() const {
  std::string bytes;
  MILLPOND_RETURN_IF_ERROR(
      LookAt("serializing an executable", [&](PJRT_Executable* executable) -> base::Status {
        return base::MoveValue(pjrt::Serialize(api_, executable), &bytes);
      }));
  return bytes;
}

}  // namespace millpond::pjrt
