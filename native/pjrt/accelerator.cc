#include "native/pjrt/accelerator.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "native/base/clock.h"
#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/compile_options.h"
#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {
namespace {

int64_t MachineBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace

Accelerator::Accelerator(std::shared_ptr<const Client> client, std::shared_ptr<PinnedMemory> pinned,
                         PJRT_Device* device, size_t index, const AcceleratorOptions& options)
    : client_(std::move(client)),
      pinned_(std::move(pinned)),
      device_(device),
      name_(std::to_string(index)),
      memory_bytes_max_(options.memory_bytes_max),
      stall_ns_(options.stall_ns),
      memory_(DeviceMemory::kUnlimited, options.idle_ns),
      turns_(options.wait_ns_max),
      staging_(pinned_->pins(), staging_budget_),
      upload_staging_(MakeStaging(ChunkedUpload::kChunkBytes)),
      uploads_(std::make_unique<DriverThread>("upload-" + name_)) {}

base::StatusOr<Accelerator::List> Accelerator::MakeAll(const Plugin& plugin,
                                                       const AcceleratorOptions& options) {
  auto client = Client::Make(plugin, options.memory_fraction);
  if (!client.ok()) return client.status();
  const base::StatusOr<std::vector<PJRT_Device*>> devices = client.value()->Devices();
  if (!devices.ok()) return devices.status();
  const auto pinned = std::make_shared<PinnedMemory>(
      client.value(), options.pinned_bytes_max < 0 ? MachineBytes() / 2 : options.pinned_bytes_max,
      options.stall_ns);
  List accelerators;
  for (PJRT_Device* const device : devices.value()) {
    accelerators.emplace_back(
        new Accelerator(client.value(), pinned, device, accelerators.size(), options));
    MILLPOND_RETURN_IF_ERROR(accelerators.back()->LookAtDevice(devices.value().size() > 1));
  }
  return accelerators;
}

Accelerator::~Accelerator() {
  uploads_.reset();  // its thread uses the client
}

base::Status Accelerator::LookAtDevice(bool is_one_of_several) {
  const base::StatusOr<std::string> kind = client_->KindOf(device_);
  if (!kind.ok()) return kind.status();
  description_ = client_->description() + ", " + kind.value();
  target_ = client_->plugin_build() + ", " + kind.value();
  topology_ = client_->Topology();
  is_one_of_several_ = is_one_of_several;
  compile_options_ = OptionsForAnyDevice();
  if (is_one_of_several) {
    const base::StatusOr<int64_t> id = client_->IdOf(device_);
    if (!id.ok()) return id.status();
    compile_options_ = OptionsForDevice(id.value());
  }
  const base::StatusOr<AcceleratorMemory> memory = Memory();
  const int64_t limit_bytes = memory.ok() ? memory.value().limit_bytes : memory_bytes_max_;
  if (limit_bytes > 0) memory_.SetLimit(limit_bytes);
  return {};
}

// Says whether the plugin has made the program for this device. A run with the buffers of another
// device would fail.
base::Status Accelerator::CheckIsHere(const Executable& executable) const {
  if (!is_one_of_several_) return {};
  const base::StatusOr<std::vector<PJRT_Device*>> devices = executable.Devices();
  if (!devices.ok()) return devices.status();
  if (devices.value() == std::vector{device_}) return {};
  return base::Internal(description_ + " has made a program for another device");
}

base::StatusOr<std::unique_ptr<Executable>> Accelerator::Compile(std::string_view hlo,
                                                                 bool autotunes) const {
  const std::string options = autotunes ? compile_options_ : WithoutAutotuning(compile_options_);
  std::string code(hlo);
  PJRT_Program program = HloProgram(&code);
  MILLPOND_PJRT_ARGS(PJRT_Client_Compile, compile);
  compile.client = client_->get();
  compile.program = &program;
  compile.compile_options = options.data();
  compile.compile_options_size = options.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api(), api()->PJRT_Client_Compile(&compile),
                                "compiling for " + description_);
  compiled_count_.fetch_add(1, std::memory_order_relaxed);
  auto executable = Executable::Own(api(), &pace(), is_lost_, compile.executable);
  if (executable.ok()) MILLPOND_RETURN_IF_ERROR(CheckIsHere(*executable.value()));
  return executable;
}

base::StatusOr<std::unique_ptr<Executable>> Accelerator::LoadExecutable(
    std::string_view serialized) const {
  MILLPOND_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad, load);
  load.client = client_->get();
  load.serialized_executable = serialized.data();
  load.serialized_executable_size = serialized.size();
  // It may have been compiled for another device of the same sort.
  if (is_one_of_several_) {
    load.overridden_serialized_compile_options = compile_options_.data();
    load.overridden_serialized_compile_options_size = compile_options_.size();
  }
  PJRT_Error* error = nullptr;
  pace().Make([&] { error = api()->PJRT_Executable_DeserializeAndLoad(&load); });
  MILLPOND_RETURN_IF_PJRT_ERROR(api(), error, "loading an executable");
  loaded_count_.fetch_add(1, std::memory_order_relaxed);
  auto executable = Executable::Own(api(), &pace(), is_lost_, load.loaded_executable);
  if (executable.ok()) MILLPOND_RETURN_IF_ERROR(CheckIsHere(*executable.value()));
  return executable;
}

base::StatusOr<DeviceBuffer> Accelerator::StartUpload(const HostTensor& tensor,
                                                      PJRT_Event** copied) const {
  MILLPOND_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer, upload);
  upload.client = client_->get();
  upload.data = tensor.elements;
  upload.type = tensor.type;
  upload.dims = tensor.dims.data();
  upload.num_dims = tensor.dims.size();
  upload.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  upload.device = device_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api(), api()->PJRT_Client_BufferFromHostBuffer(&upload),
                                "copying to the accelerator");
  *copied = upload.done_with_host_buffer;
  return DeviceBuffer(api(), upload.buffer);
}

void Accelerator::CountAsLost() const {
  if (!is_lost_->exchange(true)) KeepForEver(client_);
}

bool Accelerator::Responds() const {
  static constexpr uint32_t kWord = 0;
  if (is_lost()) return false;
  PJRT_Event* copied = nullptr;
  auto buffer = StartUpload({PJRT_Buffer_Type_U32, {1}, &kWord, sizeof(kWord)}, &copied);
  if (!buffer.ok()) return buffer.status().code() == base::Code::kResourceExhausted;
  base::Status ended;
  base::Status written;
  if (api().AwaitFor(copied, stall_ns_, "copying a word", &ended) &&
      buffer.value().AwaitReadyFor(stall_ns_, &written)) {
    return ended.ok() && (written.ok() || written.code() == base::Code::kResourceExhausted);
  }
  KeepForEver(std::move(buffer.value()));
  CountAsLost();
  return false;
}

AcceleratorState Accelerator::State() const {
  const MemoryUse use = memory_.Use(base::MonotonicNs());
  AcceleratorState state;
  state.limit_bytes = use.limit_bytes == DeviceMemory::kUnlimited ? 0 : use.limit_bytes;
  state.parameter_bytes = use.copy_bytes;
  state.idle_bytes = use.idle_bytes;
  state.busy_ns = turns_.busy_ns();
  state.is_failing = is_failing_.load(std::memory_order_relaxed) || is_lost();
  state.compiled_count = compiled_count_.load(std::memory_order_relaxed);
  state.loaded_count = loaded_count_.load(std::memory_order_relaxed);
  state.shared_count = executables_.found_count();
  state.pinned_bytes = pinned_->bytes();
  state.pinned_limit_bytes = pinned_->bytes_max();
  state.staging_bytes = staging_bytes();
  return state;
}

void Accelerator::Reserve(int64_t bytes) const {
  if (!MILLPOND_PJRT_HAS(api(), PJRT_Client_CreateUninitializedBuffer)) return;
  const base::StatusOr<AcceleratorMemory> memory = Memory();
  if (!memory.ok() || bytes > memory.value().limit_bytes - memory.value().used_bytes) return;
  MILLPOND_PJRT_ARGS(PJRT_Client_CreateUninitializedBuffer, create);
  create.client = client_->get();
  create.shape_dims = &bytes;
  create.shape_num_dims = 1;
  create.shape_element_type = PJRT_Buffer_Type_U8;
  create.device = device_;
  // Other memory may have been taken meanwhile, so an error means nothing.
  if (api().ToStatus(api()->PJRT_Client_CreateUninitializedBuffer(&create), "reserving").ok()) {
    DeviceBuffer(api(), create.buffer);
  }
}

base::StatusOr<AcceleratorMemory> Accelerator::Memory() const {
  MILLPOND_PJRT_ARGS(PJRT_Device_MemoryStats, statistics);
  statistics.device = device_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api(), api()->PJRT_Device_MemoryStats(&statistics),
                                "counting the memory of " + description_);
  const int64_t own_bytes = statistics.bytes_limit_is_set ? statistics.bytes_limit : 0;
  const bool is_bounded =
      memory_bytes_max_ > 0 && (own_bytes == 0 || memory_bytes_max_ < own_bytes);
  return AcceleratorMemory{statistics.bytes_in_use, is_bounded ? memory_bytes_max_ : own_bytes};
}

}  // namespace millpond::pjrt
