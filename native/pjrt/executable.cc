#include "native/pjrt/executable.h"

namespace millpond::pjrt {

Executable::~Executable() {
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_Destroy, destroy);
  destroy.executable = loaded_;
  static_cast<void>(
      api_.ToStatus(api_->PJRT_LoadedExecutable_Destroy(&destroy), "freeing an executable"));
}

base::Status Executable::Run(const std::vector<PJRT_Buffer*>& arguments,
                             std::vector<DeviceBuffer>* outputs) const {
  std::vector<PJRT_Buffer*> results(output_count_, nullptr);
  PJRT_Buffer* const* const argument_list = arguments.data();
  PJRT_Buffer** const output_list = results.data();
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_Execute, execute);
  execute.executable = loaded_;
  execute.options = &options;
  execute.argument_lists = &argument_list;
  execute.output_lists = &output_list;
  execute.num_devices = 1;
  execute.num_args = arguments.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_LoadedExecutable_Execute(&execute),
                                "running on the accelerator");
  for (PJRT_Buffer* const result : results) outputs->emplace_back(api_, result);
  return {};
}

base::StatusOr<std::string> Executable::Serialize() const {
  MILLPOND_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable, get);
  get.loaded_executable = loaded_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_LoadedExecutable_GetExecutable(&get),
                                "serializing an executable");
  MILLPOND_PJRT_ARGS(PJRT_Executable_Serialize, serialize);
  serialize.executable = get.executable;
  std::string bytes;
  const base::Status status =
      api_.ToStatus(api_->PJRT_Executable_Serialize(&serialize), "serializing an executable");
  if (status.ok()) {
    bytes.assign(serialize.serialized_bytes, serialize.serialized_bytes_size);
    serialize.serialized_executable_deleter(serialize.serialized_executable);
  }
  MILLPOND_PJRT_ARGS(PJRT_Executable_Destroy, destroy);
  destroy.executable = get.executable;
  static_cast<void>(
      api_.ToStatus(api_->PJRT_Executable_Destroy(&destroy), "freeing an executable"));
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace millpond::pjrt
