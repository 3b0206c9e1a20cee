// A PJRT plugin without an accelerator: see fake_pjrt_plugin.h.

#include "tests/native/fake_pjrt_plugin.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/pjrt/packed_tensors.h"
#include "tests/native/late_device.h"
#include "xla/pjrt/c/pjrt_c_api.h"

using millpond::tests::LateDevice;

// The memory of a buffer, as long as the buffer or a step of a late device has it. Its place is
// free for the next buffer of its size then, with nothing in it that could pass for an answer.
struct DeviceMemory {
  explicit DeviceMemory(size_t count);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  size_t bytes() const { return elements.size() * sizeof(float); }

  std::vector<float> elements;
};

struct PJRT_Error {
  PJRT_Error_Code code;
  std::string message;
};
struct PJRT_Client {
  size_t device_count;
};
struct PJRT_DeviceDescription {
  int id;
  std::string kind = "Fake";
};
// Its text is the kind of its only device.
struct PJRT_TopologyDescription {
  explicit PJRT_TopologyDescription(std::string kind) : device{0, std::move(kind)} {}
  PJRT_DeviceDescription device;
  PJRT_DeviceDescription* devices[1] = {&device};
};
struct PJRT_Device {
  PJRT_DeviceDescription description;
};
struct PJRT_Memory {
  int device;
};
// A tensor that is written in parts. Guarded by the mutex.
struct Parts {
  size_t missing_bytes = 0;  // that no part has brought yet
  bool has_last = false;
  bool has_failed = false;
  int64_t under_way = 0;  // whose events were not freed
};
struct PJRT_Event {
  int64_t happens_ns;
  bool is_transfer_in = false;
  LateDevice::StepPtr step = nullptr;        // after which it happens, if the device is late
  std::function<void()> copy = {};           // made when it is awaited
  std::shared_ptr<Parts> part_of = {};       // if it is the event of a part, which reports success
  std::shared_ptr<Parts> readiness_of = {};  // if it is the readiness of a tensor of parts
};
struct PJRT_Buffer {
  int device;
  std::shared_ptr<DeviceMemory> memory;
  int64_t ready_ns = 0;
  LateDevice::StepPtr written = nullptr;  // the step that writes it, if the device is late
  bool is_freed = false;
  bool is_donated = false;                 // its memory is that of another buffer
  bool is_sent = false;                    // a copy from the process writes it
  std::shared_ptr<Parts> parts = nullptr;  // if it is written in parts
};
struct PJRT_AsyncHostToDeviceTransferManager {
  std::vector<PJRT_Buffer*> buffers;
  size_t taken_count = 0;
};
struct PJRT_Executable {};
struct PJRT_LoadedExecutable {
  PJRT_Device* device;
  std::string code;
  size_t rows;
  size_t inputs;
  float added = 0;        // to each row of the output
  bool is_loaded = true;  // not compiled for a topology
  size_t table_rows = 0;  // of a program that writes `rows` of them; 0: it is another one
  size_t width = 0;
};

namespace {

FakePjrtControls controls;
std::mutex mutex;
std::map<const char*, size_t> pinned;  // the bytes at each address; guarded by the mutex
std::multimap<size_t, std::vector<float>> free_memory;  // by element count; guarded by the mutex
std::unique_ptr<LateDevice> late;                       // of the only client that is late
// Buffers of a late device that were freed, so that a later use of one is seen; guarded by the
// mutex.
std::vector<std::unique_ptr<PJRT_Buffer>> freed_buffers;

// No answer of a program, and no sum of some of them, is like this.
constexpr float kScribble = -1.5e30F;

// A late device may take its time to free a buffer.
constexpr uint32_t kOneSlowOf = 8;
constexpr int64_t kSlowNs = 50'000;

void CountMisuse() {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.misuse_count += 1;
}

// Adds 1 to `*count` if all of `bytes` at `data` are pinned.
void CountIfPinned(const void* data, size_t bytes, int64_t* count) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto* const begin = static_cast<const char*>(data);
  const auto after = pinned.upper_bound(begin);
  if (after == pinned.begin()) return;
  const auto& [start, size] = *std::prev(after);
  if (begin + bytes <= start + size) *count += 1;
}
PJRT_Device all_devices[] = {{{0}}, {{1}}, {{2}}, {{3}}};
PJRT_Device* devices[] = {&all_devices[0], &all_devices[1], &all_devices[2], &all_devices[3]};

// Returns the size of what WithoutAutotuning puts before the options; 0 if nothing.
size_t OverrideBytes(std::string_view options) {
  return options.substr(0, 1) == "\x3a" ? 2 + options[1] : 0;
}

// Returns the device that compile options name last, if they have an assignment; else the first.
PJRT_Device* DeviceOf(const char* options, size_t bytes) {
  const size_t without_assignment = 17 + OverrideBytes({options, bytes});
  const bool is_first = bytes <= without_assignment || controls.loads_for_the_first;
  return devices[is_first ? 0 : options[bytes - 1]];
}

PJRT_Error* MakeError(PJRT_Error_Code code, const char* message) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_errors += 1;
  return new PJRT_Error{code, message};
}

// Returns an event that happens at `happens_ns`; none if that is over.
PJRT_Event* MakeEvent(int64_t happens_ns) {
  if (happens_ns <= millpond::base::MonotonicNs()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_events += 1;
  return new PJRT_Event{happens_ns};
}

// Returns when what takes `took_ns` from `begins_ns` on is done, on a part of the device that is
// free at `*free_ns`.
int64_t EndOf(int64_t begins_ns, int64_t took_ns, int64_t* free_ns) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!controls.is_serial) return begins_ns + took_ns;
  *free_ns = std::max(*free_ns, begins_ns) + took_ns;
  return *free_ns;
}

void Log(int64_t ns, std::vector<int64_t>* log) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (controls.is_serial) log->push_back(ns);
}

// Returns an event that happens after `step`.
PJRT_Event* MakeEvent(LateDevice::StepPtr step) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_events += 1;
  return new PJRT_Event{0, false, std::move(step)};
}

PJRT_Error* MakeBuffer(int device, size_t count, PJRT_Buffer** buffer) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto bytes = static_cast<int64_t>(count * sizeof(float));
    if (controls.used_bytes + bytes <= controls.memory_bytes_max) {
      controls.used_bytes += bytes;
      controls.most_used_bytes = std::max(controls.most_used_bytes, controls.used_bytes);
      controls.live_buffers += 1;
      *buffer = new PJRT_Buffer{device, std::make_shared<DeviceMemory>(count)};
      return nullptr;
    }
    controls.refused_count += 1;
  }
  return MakeError(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the fake device is full");
}

// Fails some calls and steps of a late device.
bool FailsNow() { return late != nullptr && late->Draw(controls.late_fails_one_of); }
std::string LateFault() { return FailsNow() ? "the fake step has failed" : ""; }

void ErrorDestroy(PJRT_Error_Destroy_Args* args) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_errors -= 1;
  delete args->error;
}
void ErrorMessage(PJRT_Error_Message_Args* args) {
  args->message = args->error->message.data();
  args->message_size = args->error->message.size();
}
PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* args) {
  args->code = args->error->code;
  return nullptr;
}
PJRT_Error* PluginInitialize(PJRT_Plugin_Initialize_Args*) { return nullptr; }
PJRT_Error* PluginAttributes(PJRT_Plugin_Attributes_Args* args) {
  static const PJRT_NamedValue cuda_version = [] {
    PJRT_NamedValue value{};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    value.name = "cuda_version";
    value.name_size = std::strlen(value.name);
    value.type = PJRT_NamedValue_kInt64;
    value.value_size = 1;
    return value;
  }();
  args->attributes = &cuda_version;
  args->num_attributes = controls.is_cuda ? 1 : 0;
  return nullptr;
}
PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_clients += 1;
  if (controls.is_late) late = std::make_unique<LateDevice>(controls.late_seed);
  args->client = new PJRT_Client{static_cast<size_t>(controls.device_count)};
  return nullptr;
}
PJRT_Error* ClientDestroy(PJRT_Client_Destroy_Args* args) {
  late.reset();
  const std::lock_guard<std::mutex> lock(mutex);
  freed_buffers.clear();
  free_memory.clear();
  controls.live_clients -= 1;
  // Abandoned memory stays pinned, and the pins of other clients are theirs.
  if (controls.live_clients == 0) pinned.clear();
  delete args->client;
  return nullptr;
}
PJRT_Error* ClientPlatformVersion(PJRT_Client_PlatformVersion_Args* args) {
  args->platform_version = "fake 1";
  args->platform_version_size = std::strlen(args->platform_version);
  return nullptr;
}
PJRT_Error* ClientPlatformName(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = controls.is_of_cpus ? "cpu" : "fake";
  args->platform_name_size = std::strlen(args->platform_name);
  return nullptr;
}
PJRT_Error* ClientTopology(PJRT_Client_TopologyDescription_Args* args) {
  static PJRT_TopologyDescription topology("Fake");
  args->topology = &topology;
  return nullptr;
}
PJRT_Error* TopologyAttributes(PJRT_TopologyDescription_Attributes_Args* args) {
  static PJRT_NamedValue target_config{};
  target_config.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  target_config.name = "target_config";
  target_config.name_size = std::strlen(target_config.name);
  target_config.type = PJRT_NamedValue_kString;
  target_config.string_value = args->topology->device.kind.data();
  target_config.value_size = args->topology->device.kind.size();
  args->attributes = &target_config;
  args->num_attributes = controls.shows_topology ? 1 : 0;
  return nullptr;
}
PJRT_Error* ClientAddressableDevices(PJRT_Client_AddressableDevices_Args* args) {
  args->addressable_devices = devices;
  args->num_addressable_devices = args->client->device_count;
  return nullptr;
}
PJRT_Error* DeviceGetDescription(PJRT_Device_GetDescription_Args* args) {
  args->device_description = &args->device->description;
  return nullptr;
}
PJRT_Error* DeviceDescriptionKind(PJRT_DeviceDescription_Kind_Args* args) {
  args->device_kind = args->device_description->kind.data();
  args->device_kind_size = args->device_description->kind.size();
  return nullptr;
}
PJRT_Error* DeviceDescriptionId(PJRT_DeviceDescription_Id_Args* args) {
  args->id = args->device_description->id;
  return nullptr;
}
PJRT_Error* DeviceMemoryStats(PJRT_Device_MemoryStats_Args* args) {
  if (!controls.counts_memory) return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "no counts");
  const std::lock_guard<std::mutex> lock(mutex);
  args->bytes_in_use = controls.used_bytes;
  args->bytes_limit = controls.memory_bytes_max;
  args->bytes_limit_is_set = true;
  return nullptr;
}
PJRT_Error* MakeExecutable(const std::string& code, PJRT_Device* device,
                           PJRT_LoadedExecutable** executable) {
  const std::string scatter = "scatter ";
  const bool is_scatter = code.compare(0, scatter.size(), scatter) == 0;
  std::istringstream words(is_scatter ? code.substr(scatter.size()) : code);
  size_t table_rows = 0;
  size_t width = 0;
  if (is_scatter) words >> table_rows >> width;
  size_t rows = 0;
  size_t inputs = 0;
  if (!(words >> rows) || !(is_scatter || words >> inputs)) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the fake program cannot be read");
  }
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_executables += 1;
  *executable = new PJRT_LoadedExecutable{device, code, rows, inputs, 0, true, table_rows, width};
  words >> (*executable)->added;
  return nullptr;
}
PJRT_Error* ClientCompile(PJRT_Client_Compile_Args* args) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    controls.compile_count += 1;
    const std::string_view options(args->compile_options, args->compile_options_size);
    if (OverrideBytes(options) > 0) controls.untuned_compile_count += 1;
  }
  return MakeExecutable({args->program->code, args->program->code_size},
                        DeviceOf(args->compile_options, args->compile_options_size),
                        &args->executable);
}
PJRT_Error* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    controls.load_count += 1;
  }
  PJRT_Device* const device = DeviceOf(args->overridden_serialized_compile_options,
                                       args->overridden_serialized_compile_options_size);
  if (controls.before_load) controls.before_load(device->description.id);
  if (controls.load_error != 0) {
    return MakeError(static_cast<PJRT_Error_Code>(controls.load_error), "it is not loaded");
  }
  return MakeExecutable({args->serialized_executable, args->serialized_executable_size}, device,
                        &args->loaded_executable);
}
PJRT_Error* TopologyCreate(PJRT_TopologyDescription_Create_Args* args) {
  if (!controls.has_topologies) return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "no topologies");
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_topologies += 1;
  const PJRT_NamedValue& kind = args->create_options[0];
  args->topology = new PJRT_TopologyDescription({kind.string_value, kind.value_size});
  return nullptr;
}
PJRT_Error* TopologyDestroy(PJRT_TopologyDescription_Destroy_Args* args) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_topologies -= 1;
  delete args->topology;
  return nullptr;
}
PJRT_Error* TopologyDevices(PJRT_TopologyDescription_GetDeviceDescriptions_Args* args) {
  args->descriptions = args->topology->devices;
  args->num_descriptions = 1;
  return nullptr;
}
PJRT_Error* Compile(PJRT_Compile_Args* args) {
  PJRT_LoadedExecutable* loaded = nullptr;
  PJRT_Error* const error =
      MakeExecutable({args->program->code, args->program->code_size}, devices[0], &loaded);
  if (error != nullptr) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  controls.compile_count += 1;
  if (OverrideBytes({args->compile_options, args->compile_options_size}) > 0) {
    controls.untuned_compile_count += 1;
  }
  loaded->is_loaded = false;
  args->executable = reinterpret_cast<PJRT_Executable*>(loaded);
  return nullptr;
}
PJRT_Error* LoadedExecutableDestroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_executables -= 1;
  delete args->executable;
  return nullptr;
}
PJRT_Error* LoadedExecutableDevices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = &args->executable->device;
  args->num_addressable_devices = 1;
  return nullptr;
}
// The executable of a loaded one is the loaded one, which its own function frees.
PJRT_Error* GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = reinterpret_cast<PJRT_Executable*>(args->loaded_executable);
  return nullptr;
}
PJRT_Error* ExecutableDestroy(PJRT_Executable_Destroy_Args* args) {
  auto* const executable = reinterpret_cast<PJRT_LoadedExecutable*>(args->executable);
  if (executable->is_loaded) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_executables -= 1;
  delete executable;
  return nullptr;
}
PJRT_Error* ExecutableNumOutputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = 1;
  return nullptr;
}
PJRT_Error* CompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args* args) {
  args->temp_size_in_bytes = controls.temporary_bytes;
  args->generated_code_size_in_bytes = controls.code_bytes;
  return nullptr;
}
PJRT_Error* ExecutableSerialize(PJRT_Executable_Serialize_Args* args) {
  if (!controls.serializes) return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "no serialization");
  const auto* const loaded = reinterpret_cast<const PJRT_LoadedExecutable*>(args->executable);
  args->serialized_bytes = loaded->code.data();
  args->serialized_bytes_size = loaded->code.size();
  args->serialized_executable_deleter = [](PJRT_SerializedExecutable*) {};
  return nullptr;
}

PJRT_Error* ClientDmaMap(PJRT_Client_DmaMap_Args* args) {
  if (controls.crashes_in_pins) std::abort();
  if (controls.before_pin) controls.before_pin();
  if (!controls.pins) return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "no pins");
  const std::lock_guard<std::mutex> lock(mutex);
  const auto* const start = static_cast<const char*>(args->data);
  const auto after = pinned.upper_bound(start);
  const bool begins_in_one =
      after != pinned.begin() && start < std::prev(after)->first + std::prev(after)->second;
  const bool ends_in_one = after != pinned.end() && after->first < start + args->size;
  controls.overlapping_pins += begins_in_one || ends_in_one ? 1 : 0;
  pinned[start] = args->size;
  controls.live_pins += 1;
  controls.pin_count += 1;
  return nullptr;
}
PJRT_Error* ClientDmaUnmap(PJRT_Client_DmaUnmap_Args* args) {
  // Memory that the driver holds is no leak, so it is found here until the process ends.
  static auto* const held = new std::vector<const void*>;
  if (controls.before_unpin) controls.before_unpin();
  if (!controls.unpins) {
    held->push_back(args->data);
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake driver is gone");
  }
  const auto* const begin = static_cast<const char*>(args->data);
  size_t bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    bytes = pinned.at(begin);
    controls.live_pins -= static_cast<int64_t>(pinned.erase(begin));
  }
  if (late != nullptr && late->IsInConflict({begin, bytes, true})) CountMisuse();
  return nullptr;
}

// Starts a copy of a late device. Memory that another step writes meanwhile, or that this one
// writes while another one has it, was given to the device twice.
LateDevice::StepPtr StartLateCopy(LateDevice::Lane lane, std::vector<LateDevice::StepPtr> after,
                                  LateDevice::Work work, LateDevice::HostMemory host) {
  if (late->IsInConflict(host)) CountMisuse();
  return late->Add(lane, std::move(after), std::move(work), host);
}

// The elements are read just before the event that ends the host's promise.
void StartLateCopyIn(PJRT_Client_BufferFromHostBuffer_Args* args) {
  const auto* const from = static_cast<const char*>(args->data);
  const auto work = [from, memory = args->buffer->memory, fault = LateFault()] {
    if (fault.empty() && memory->bytes() > 0) {
      std::memcpy(memory->elements.data(), from, memory->bytes());
    }
    return fault;
  };
  args->buffer->is_sent = true;
  args->buffer->written =
      StartLateCopy(LateDevice::Lane::kIn, {}, work, {from, args->buffer->memory->bytes(), false});
  args->done_with_host_buffer = MakeEvent(args->buffer->written);
}

PJRT_Error* CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args* args) {
  const size_t bytes = args->shape_num_dims == 1 ? args->shape_dims[0] : 0;
  return MakeBuffer(args->device->description.id, bytes / sizeof(float), &args->buffer);
}

PJRT_Error* BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  const int device = args->device->description.id;
  if (controls.fails_transfers || device == controls.failing_device || FailsNow()) {
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake link is gone");
  }
  size_t count = 1;
  for (size_t i = 0; i < args->num_dims; ++i) count *= args->dims[i];
  if (PJRT_Error* const error = MakeBuffer(device, count, &args->buffer)) return error;
  CountIfPinned(args->data, count * sizeof(float), &controls.copies_from_pinned);
  if (late != nullptr) {
    StartLateCopyIn(args);
    return nullptr;
  }
  std::memcpy(args->buffer->memory->elements.data(), args->data, count * sizeof(float));
  args->buffer->is_sent = true;
  args->buffer->ready_ns =
      EndOf(millpond::base::MonotonicNs(), controls.transfer_in_ns, &controls.link_in_free_ns);
  Log(args->buffer->ready_ns - controls.transfer_in_ns, &controls.transfer_in_begin_ns);
  args->done_with_host_buffer = MakeEvent(args->buffer->ready_ns);
  if (args->done_with_host_buffer != nullptr) {
    args->done_with_host_buffer->is_transfer_in = true;
    const std::lock_guard<std::mutex> lock(mutex);
    controls.transfers_under_way += 1;
    controls.transfers_under_way_max =
        std::max(controls.transfers_under_way_max, controls.transfers_under_way);
  }
  return nullptr;
}
void Free(PJRT_Buffer* buffer) {
  if (buffer->is_freed) CountMisuse();
  if (late != nullptr && late->Draw(kOneSlowOf)) millpond::base::SleepNs(kSlowNs);
  std::shared_ptr<DeviceMemory> memory;
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_buffers -= 1;
  // Its memory takes the mutex at its end.
  memory.swap(buffer->memory);
  buffer->is_freed = true;
  freed_buffers.emplace_back(buffer);
  if (late == nullptr) freed_buffers.clear();
}
PJRT_Error* BufferDestroy(PJRT_Buffer_Destroy_Args* args) {
  Free(args->buffer);
  return nullptr;
}

// --- Tensors that are written in parts ---

PJRT_Error* DeviceDefaultMemory(PJRT_Device_DefaultMemory_Args* args) {
  static PJRT_Memory memories[] = {{0}, {1}, {2}, {3}};
  args->memory = &memories[args->device->description.id];
  return nullptr;
}
PJRT_Error* CreateBuffers(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args* args) {
  std::vector<PJRT_Buffer*> buffers;
  for (size_t i = 0; i < args->num_shape_specs; ++i) {
    const PJRT_ShapeSpec& shape = args->shape_specs[i];
    size_t count = 1;
    for (size_t dim = 0; dim < shape.num_dims; ++dim) count *= shape.dims[dim];
    PJRT_Buffer* buffer = nullptr;
    if (PJRT_Error* const error = MakeBuffer(args->memory->device, count, &buffer)) {
      for (PJRT_Buffer* const made : buffers) Free(made);
      return error;
    }
    buffer->parts = std::make_shared<Parts>(Parts{count * sizeof(float)});
    buffers.push_back(buffer);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_managers += 1;
  args->transfer_manager = new PJRT_AsyncHostToDeviceTransferManager{std::move(buffers)};
  return nullptr;
}
PJRT_Error* ManagerDestroy(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args* args) {
  auto& buffers = args->transfer_manager->buffers;
  for (size_t i = args->transfer_manager->taken_count; i < buffers.size(); ++i) Free(buffers[i]);
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_managers -= 1;
  delete args->transfer_manager;
  return nullptr;
}
PJRT_Error* RetrieveBuffer(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args* args) {
  args->buffer_out = args->transfer_manager->buffers[args->buffer_index];
  args->transfer_manager->taken_count += 1;  // in their order
  return nullptr;
}
PJRT_Error* ManagerBufferSize(PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args* args) {
  args->buffer_size = args->transfer_manager->buffers[args->buffer_index]->memory->bytes();
  return nullptr;
}
PJRT_Error* BufferLayout(PJRT_Buffer_GetMemoryLayout_Args* args) {
  static const int64_t row_major[] = {1, 0};
  static const int64_t column_major[] = {0, 1};
  args->layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  args->layout.tiled.minor_to_major_size = 2;
  args->layout.tiled.minor_to_major = controls.is_column_major ? column_major : row_major;
  return nullptr;
}
bool IsPinned(const void* data, size_t bytes) {
  int64_t pinned_count = 0;
  CountIfPinned(data, bytes, &pinned_count);
  return pinned_count > 0;
}
char* PlaceIn(const DeviceMemory& memory, int64_t offset) {
  return reinterpret_cast<char*>(const_cast<float*>(memory.elements.data())) + offset;
}
// Begins a part, unless its tensor has all parts.
PJRT_Error* BeginPart(Parts* parts, bool is_last) {
  const std::unique_lock<std::mutex> lock(mutex);
  if (parts->has_failed) {
    std::fputs("fake plugin: Check failed: definition_events_[buffer_index]\n", stderr);
    std::abort();
  }
  if (parts->has_last) {
    controls.live_errors += 1;
    return new PJRT_Error{PJRT_Error_Code_INVALID_ARGUMENT, "the fake tensor has its last part"};
  }
  parts->has_last = is_last;
  return nullptr;
}
// Makes the event of a part.
PJRT_Event* CountPart(PJRT_Event event, const std::shared_ptr<Parts>& parts) {
  const std::lock_guard<std::mutex> lock(mutex);
  parts->under_way += 1;
  controls.parts_of_one_max = std::max(controls.parts_of_one_max, parts->under_way);
  controls.live_events += 1;
  controls.part_count += 1;
  controls.parts_alone_count += controls.transfers_under_way == 0 ? 1 : 0;
  controls.transfers_under_way += 1;
  controls.transfers_under_way_max =
      std::max(controls.transfers_under_way_max, controls.transfers_under_way);
  event.is_transfer_in = true;
  event.part_of = parts;
  return new PJRT_Event(std::move(event));
}
void EndPart(Parts* parts, size_t bytes, bool fails) {
  const std::lock_guard<std::mutex> lock(mutex);
  parts->missing_bytes -= bytes;
  parts->has_failed = parts->has_failed || fails;
}
PJRT_Event* StartLatePart(const PJRT_AsyncHostToDeviceTransferManager_TransferData_Args& args,
                          PJRT_Buffer* buffer) {
  const auto* const from = static_cast<const char*>(args.data);
  const auto bytes = static_cast<size_t>(args.transfer_size);
  const auto work = [from, bytes, offset = args.offset, memory = buffer->memory,
                     parts = buffer->parts, fault = LateFault()] {
    if (fault.empty() && bytes > 0) std::memcpy(PlaceIn(*memory, offset), from, bytes);
    EndPart(parts.get(), bytes, !fault.empty());
    return fault;
  };
  std::vector<LateDevice::StepPtr> after;
  if (buffer->written != nullptr) after.push_back(buffer->written);
  buffer->written =
      StartLateCopy(LateDevice::Lane::kIn, std::move(after), work, {from, bytes, false});
  return CountPart({0, true, buffer->written}, buffer->parts);
}
PJRT_Event* StartPart(const PJRT_AsyncHostToDeviceTransferManager_TransferData_Args& args,
                      PJRT_Buffer* buffer) {
  const auto bytes = static_cast<size_t>(args.transfer_size);
  buffer->ready_ns =
      EndOf(millpond::base::MonotonicNs(), controls.transfer_in_ns, &controls.link_in_free_ns);
  // As after an error that stays on the device, the failure is known at once.
  if (controls.failing_copy-- == 0) EndPart(buffer->parts.get(), 0, /*fails=*/true);
  auto copy = [memory = buffer->memory, parts = buffer->parts, data = args.data, bytes,
               offset = args.offset, was_pinned = IsPinned(args.data, bytes)] {
    if (bytes > 0) std::memcpy(PlaceIn(*memory, offset), data, bytes);
    EndPart(parts.get(), bytes, /*fails=*/false);
    if (was_pinned && !IsPinned(data, bytes)) controls.unpinned_in_copies += 1;
  };
  return CountPart({buffer->ready_ns, true, nullptr, std::move(copy)}, buffer->parts);
}
PJRT_Error* TransferData(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args* args) {
  PJRT_Buffer* const buffer = args->transfer_manager->buffers[args->buffer_index];
  const auto bytes = static_cast<size_t>(args->transfer_size);
  if (controls.crashing_part-- == 0) std::abort();
  if (PJRT_Error* const error = BeginPart(buffer->parts.get(), args->is_last_transfer)) {
    return error;
  }
  if (controls.fails_transfers || buffer->device == controls.failing_device || FailsNow() ||
      controls.failing_part-- == 0) {
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake link is gone");
  }
  CountIfPinned(args->data, bytes, &controls.copies_from_pinned);
  controls.part_bytes_max = std::max(controls.part_bytes_max, args->transfer_size);
  buffer->is_sent = true;
  args->done_with_h2d_transfer =
      late != nullptr ? StartLatePart(*args, buffer) : StartPart(*args, buffer);
  return nullptr;
}

PJRT_Error* BufferReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  const PJRT_Buffer& buffer = *args->buffer;
  std::unique_lock<std::mutex> lock(mutex);
  const Parts* const parts = buffer.parts.get();
  if (parts != nullptr &&
      (parts->has_failed || !parts->has_last || (late == nullptr && parts->missing_bytes > 0))) {
    controls.live_events += 1;
    args->event = new PJRT_Event{0};
    args->event->readiness_of = buffer.parts;
    return nullptr;
  }
  lock.unlock();
  args->event = late == nullptr ? MakeEvent(buffer.ready_ns) : MakeEvent(buffer.written);
  return nullptr;
}
PJRT_Error* BufferIsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  args->is_deleted = args->buffer->is_donated;
  return nullptr;
}
PJRT_Error* BufferSize(PJRT_Buffer_OnDeviceSizeInBytes_Args* args) {
  args->on_device_size_in_bytes = args->buffer->memory->bytes();
  return nullptr;
}
// The elements are written just before the event, and something else before that.
void StartLateCopyOut(PJRT_Buffer_ToHostBuffer_Args* args) {
  auto* const to = static_cast<char*>(args->dst);
  const auto work = [to, memory = args->src->memory, took_ns = controls.transfer_out_ns,
                     fault = LateFault()] {
    millpond::base::SleepNs(took_ns);
    std::fill_n(reinterpret_cast<float*>(to), memory->elements.size(), kScribble);
    if (fault.empty() && memory->bytes() > 0) {
      std::memcpy(to, memory->elements.data(), memory->bytes());
    }
    return fault;
  };
  args->event = MakeEvent(StartLateCopy(LateDevice::Lane::kOut, {args->src->written}, work,
                                        {to, args->dst_size, true}));
}

PJRT_Error* BufferToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  if (args->src->is_freed || args->src->is_donated || FailsNow()) {
    if (args->src->is_freed || args->src->is_donated) CountMisuse();
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake copy cannot begin");
  }
  const std::vector<float>& elements = args->src->memory->elements;
  if (args->dst_size != elements.size() * sizeof(float)) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the fake copy has another size");
  }
  CountIfPinned(args->dst, args->dst_size, &controls.copies_to_pinned);
  if (late != nullptr) {
    StartLateCopyOut(args);
    return nullptr;
  }
  if (args->dst_size > 0) std::memcpy(args->dst, elements.data(), args->dst_size);
  const int64_t done_ns = EndOf(std::max(args->src->ready_ns, millpond::base::MonotonicNs()),
                                controls.transfer_out_ns, &controls.link_out_free_ns);
  Log(done_ns, &controls.transfer_out_end_ns);
  args->event = MakeEvent(done_ns);
  return nullptr;
}

using Memories = std::vector<std::shared_ptr<DeviceMemory>>;

Memories MemoryOf(const std::vector<PJRT_Buffer*>& buffers) {
  Memories memories;
  for (const PJRT_Buffer* buffer : buffers) memories.push_back(buffer->memory);
  return memories;
}

// The program: `arguments` are the block of its inputs and the parameter.
void Compute(const Memories& arguments, size_t inputs, float added, DeviceMemory* output) {
  std::vector<float>& sums = output->elements;
  std::fill(sums.begin(), sums.end(), 0.0F);
  const std::vector<size_t> sizes(inputs, output->bytes());
  for (const size_t offset : millpond::pjrt::PackedTensors(sizes).offsets) {
    for (size_t row = 0; row < sums.size(); ++row) {
      sums[row] += arguments[0]->elements.at(offset / sizeof(float) + row);
    }
  }
  for (float& sum : sums) sum = sum * arguments[1]->elements[0] + added;
}

void StartLateRun(const std::vector<PJRT_Buffer*>& arguments, const PJRT_LoadedExecutable& of,
                  int64_t took_ns, PJRT_Buffer* output) {
  std::vector<LateDevice::StepPtr> after;
  for (const PJRT_Buffer* argument : arguments) after.push_back(argument->written);
  const auto work = [from = MemoryOf(arguments), inputs = of.inputs, added = of.added,
                     to = output->memory, took_ns, fault = LateFault()] {
    millpond::base::SleepNs(took_ns);
    if (fault.empty()) Compute(from, inputs, added, to.get());
    return fault;
  };
  output->written = late->Add(LateDevice::Lane::kRun, std::move(after), work, {});
}

// Writes the rows of a block to a table, as RowScatter places them in it.
void WriteRows(const PJRT_LoadedExecutable& program, const DeviceMemory& block,
               DeviceMemory* table) {
  const std::vector<size_t> sizes = {program.rows * 4, program.rows * program.width * 4};
  const millpond::pjrt::PackedTensors packed(sizes);
  const auto* const bytes = reinterpret_cast<const char*>(block.elements.data());
  for (size_t i = 0; i < program.rows; ++i) {
    int32_t id = 0;
    std::memcpy(&id, bytes + packed.offsets[0] + i * 4, 4);
    if (id < 0 || static_cast<size_t>(id) >= program.table_rows) continue;
    std::memcpy(&table->elements.at(id * program.width),
                bytes + packed.offsets[1] + i * program.width * 4, program.width * 4);
  }
}

// Starts a program of RowScatter: of a block and a table.
PJRT_Error* StartScatter(const PJRT_LoadedExecutable& program, const PJRT_ExecuteOptions& options,
                         PJRT_Buffer* const* arguments, PJRT_Buffer** output) {
  PJRT_Buffer* const block = arguments[0];
  PJRT_Buffer* const table = arguments[1];
  controls.scatter_count += 1;
  if (controls.failing_scatter-- == 0) {
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake scatter has failed");
  }
  const int64_t* const kept = options.non_donatable_input_indices;
  const size_t kept_count = options.num_non_donatable_input_indices;
  const bool is_kept = std::find(kept, kept + kept_count, 1) != kept + kept_count;
  const bool is_donated = controls.donates && !is_kept;
  const std::shared_ptr<DeviceMemory> from = table->memory;
  if (is_donated) {
    const std::lock_guard<std::mutex> lock(mutex);
    controls.donated_count += 1;
    controls.live_buffers += 1;
    *output = new PJRT_Buffer{table->device, from};
    table->is_donated = true;
    table->memory = nullptr;
  } else if (PJRT_Error* const error = MakeBuffer(table->device, from->elements.size(), output)) {
    return error;
  }
  auto work = [&program, from, block = block->memory, to = (*output)->memory] {
    if (to != from) to->elements = from->elements;
    WriteRows(program, *block, to.get());
  };
  if (late == nullptr) {
    work();
    (*output)->ready_ns = millpond::base::MonotonicNs() + controls.run_ns;
    return nullptr;
  }
  const auto late_work = [work, fault = LateFault()] {
    if (fault.empty()) work();
    return fault;
  };
  std::vector<LateDevice::StepPtr> after = {table->written, block->written};
  (*output)->written = late->Add(LateDevice::Lane::kRun, std::move(after), late_work, {});
  return nullptr;
}

// A GPU may compute such a run from what its memory held before.
void CountIfEarly(PJRT_Buffer* const* arguments, size_t count) {
  const int64_t now_ns = millpond::base::MonotonicNs();
  const bool is_early = std::any_of(arguments, arguments + count, [&](const PJRT_Buffer* buffer) {
    if (!buffer->is_sent) return false;
    return late == nullptr ? buffer->ready_ns > now_ns : !late->IsDone(buffer->written);
  });
  const std::lock_guard<std::mutex> lock(mutex);
  controls.early_run_count += is_early ? 1 : 0;
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  const PJRT_LoadedExecutable& executable = *args->executable;
  const int device = executable.device->description.id;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    controls.run_count += 1;
    controls.device_run_counts[device] += 1;
  }
  if (controls.fails_runs || device == controls.failing_device || FailsNow()) {
    return MakeError(PJRT_Error_Code_INTERNAL, "the fake device is gone");
  }
  PJRT_Buffer* const* const arguments = args->argument_lists[0];
  CountIfEarly(arguments, args->num_args);
  if (args->num_args != 2) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the fake run has another argument count");
  }
  for (size_t i = 0; i < args->num_args; ++i) {
    if (arguments[i]->is_freed || arguments[i]->is_donated) {
      CountMisuse();
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the fake buffer was freed");
    }
    if (arguments[i]->device == device) continue;
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "the fake buffer is on another device");
  }
  if (executable.table_rows > 0) {
    return StartScatter(executable, *args->options, arguments, &args->output_lists[0][0]);
  }
  PJRT_Buffer* output = nullptr;
  if (PJRT_Error* const error = MakeBuffer(device, executable.rows, &output)) return error;
  args->output_lists[0][0] = output;
  const std::vector<PJRT_Buffer*> used(arguments, arguments + args->num_args);
  const int64_t took_ns = controls.run_ns + static_cast<int64_t>(executable.rows) * controls.row_ns;
  if (late != nullptr) {
    StartLateRun(used, executable, took_ns, output);
    return nullptr;
  }
  int64_t begins_ns = millpond::base::MonotonicNs();
  for (const PJRT_Buffer* buffer : used) begins_ns = std::max(begins_ns, buffer->ready_ns);
  Compute(MemoryOf(used), executable.inputs, executable.added, output->memory.get());
  output->ready_ns = EndOf(begins_ns, took_ns, &controls.device_free_ns);
  return nullptr;
}

bool HasFailed(const Parts& parts) {
  const std::lock_guard<std::mutex> lock(mutex);
  return parts.has_failed;
}
PJRT_Error* EventIsReady(PJRT_Event_IsReady_Args* args) {
  const PJRT_Event& event = *args->event;
  args->is_ready = millpond::base::MonotonicNs() >= event.happens_ns;
  if (event.step != nullptr) args->is_ready = late->IsDone(event.step);
  if (event.readiness_of != nullptr) args->is_ready = HasFailed(*event.readiness_of);
  return nullptr;
}
PJRT_Error* EventAwait(PJRT_Event_Await_Args* args) {
  PJRT_Event& event = *args->event;
  if (event.readiness_of != nullptr) {
    return MakeError(PJRT_Error_Code_INTERNAL, HasFailed(*event.readiness_of)
                                                   ? "the fake copy has failed"
                                                   : "the fake buffer is not complete");
  }
  if (event.step != nullptr) {
    const std::string error = late->Await(event.step);
    const bool is_silent = error.empty() || event.part_of != nullptr;
    return is_silent ? nullptr : MakeError(PJRT_Error_Code_INTERNAL, error.c_str());
  }
  millpond::base::SleepNs(std::max<int64_t>(0, event.happens_ns - millpond::base::MonotonicNs()));
  if (event.copy != nullptr) std::exchange(event.copy, nullptr)();
  return nullptr;
}
PJRT_Error* EventOnReady(PJRT_Event_OnReady_Args* args) {
  constexpr int64_t never_ns = 3'600'000'000'000;
  const bool is_timed = args->event->step == nullptr && args->event->readiness_of == nullptr;
  if (is_timed && args->event->happens_ns - millpond::base::MonotonicNs() > never_ns) {
    // A device that is gone never calls. A thread that waits would stay for the tests that fork.
    static auto* const kept = new std::vector<void*>;
    const std::lock_guard<std::mutex> lock(mutex);
    kept->push_back(args->user_arg);
    return nullptr;
  }
  std::thread([event = args->event, callback = args->callback, own = args->user_arg] {
    PJRT_Event_Await_Args await{};
    await.event = event;
    callback(EventAwait(&await), own);
  }).detach();
  return nullptr;
}
PJRT_Error* EventDestroy(PJRT_Event_Destroy_Args* args) {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.live_events -= 1;
  controls.transfers_under_way -= args->event->is_transfer_in ? 1 : 0;
  if (args->event->part_of != nullptr) args->event->part_of->under_way -= 1;
  delete args->event;
  return nullptr;
}

PJRT_Api MakeTable() {
  PJRT_Api table{};
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  table.pjrt_api_version.major_version = PJRT_API_MAJOR;
  table.pjrt_api_version.minor_version = PJRT_API_MINOR;
  table.PJRT_Error_Destroy = ErrorDestroy;
  table.PJRT_Error_Message = ErrorMessage;
  table.PJRT_Error_GetCode = ErrorGetCode;
  table.PJRT_Plugin_Initialize = PluginInitialize;
  table.PJRT_Plugin_Attributes = PluginAttributes;
  table.PJRT_Event_Await = EventAwait;
  table.PJRT_Event_IsReady = EventIsReady;
  table.PJRT_Event_OnReady = EventOnReady;
  table.PJRT_Event_Destroy = EventDestroy;
  table.PJRT_TopologyDescription_Create = TopologyCreate;
  table.PJRT_TopologyDescription_Destroy = TopologyDestroy;
  table.PJRT_TopologyDescription_GetDeviceDescriptions = TopologyDevices;
  table.PJRT_Compile = Compile;
  table.PJRT_Client_Create = ClientCreate;
  table.PJRT_Client_Destroy = ClientDestroy;
  table.PJRT_Client_PlatformVersion = ClientPlatformVersion;
  table.PJRT_Client_PlatformName = ClientPlatformName;
  table.PJRT_Client_TopologyDescription = ClientTopology;
  table.PJRT_TopologyDescription_Attributes = TopologyAttributes;
  table.PJRT_Client_AddressableDevices = ClientAddressableDevices;
  table.PJRT_Client_Compile = ClientCompile;
  table.PJRT_Client_DmaMap = ClientDmaMap;
  table.PJRT_Client_DmaUnmap = ClientDmaUnmap;
  table.PJRT_Client_BufferFromHostBuffer = BufferFromHostBuffer;
  table.PJRT_Client_CreateUninitializedBuffer = CreateUninitializedBuffer;
  table.PJRT_Client_CreateBuffersForAsyncHostToDevice = CreateBuffers;
  table.PJRT_AsyncHostToDeviceTransferManager_Destroy = ManagerDestroy;
  table.PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer = RetrieveBuffer;
  table.PJRT_AsyncHostToDeviceTransferManager_BufferSize = ManagerBufferSize;
  table.PJRT_AsyncHostToDeviceTransferManager_TransferData = TransferData;
  table.PJRT_Device_DefaultMemory = DeviceDefaultMemory;
  table.PJRT_DeviceDescription_Id = DeviceDescriptionId;
  table.PJRT_DeviceDescription_Kind = DeviceDescriptionKind;
  table.PJRT_Device_GetDescription = DeviceGetDescription;
  table.PJRT_Device_MemoryStats = DeviceMemoryStats;
  table.PJRT_Executable_Destroy = ExecutableDestroy;
  table.PJRT_Executable_NumOutputs = ExecutableNumOutputs;
  table.PJRT_Executable_GetCompiledMemoryStats = CompiledMemoryStats;
  table.PJRT_Executable_Serialize = ExecutableSerialize;
  table.PJRT_LoadedExecutable_Destroy = LoadedExecutableDestroy;
  table.PJRT_LoadedExecutable_GetExecutable = GetExecutable;
  table.PJRT_LoadedExecutable_AddressableDevices = LoadedExecutableDevices;
  table.PJRT_LoadedExecutable_Execute = Execute;
  table.PJRT_Executable_DeserializeAndLoad = DeserializeAndLoad;
  table.PJRT_Buffer_Destroy = BufferDestroy;
  table.PJRT_Buffer_IsDeleted = BufferIsDeleted;
  table.PJRT_Buffer_OnDeviceSizeInBytes = BufferSize;
  table.PJRT_Buffer_ToHostBuffer = BufferToHostBuffer;
  table.PJRT_Buffer_GetMemoryLayout = BufferLayout;
  table.PJRT_Buffer_ReadyEvent = BufferReadyEvent;
  return table;
}

}  // namespace

DeviceMemory::DeviceMemory(size_t count) {
  const auto freed = free_memory.find(count);
  if (freed == free_memory.end()) {
    elements.assign(count, kScribble);
    return;
  }
  elements.swap(freed->second);
  free_memory.erase(freed);
}

DeviceMemory::~DeviceMemory() {
  const std::lock_guard<std::mutex> lock(mutex);
  controls.used_bytes -= static_cast<int64_t>(bytes());
  std::fill(elements.begin(), elements.end(), kScribble);
  free_memory.emplace(elements.size(), std::move(elements));
}

extern "C" {

__attribute__((visibility("default"))) bool FakePjrtUses(const void* begin, size_t bytes) {
  return late != nullptr && late->IsInConflict({static_cast<const char*>(begin), bytes, true});
}

__attribute__((visibility("default"))) FakePjrtControls* FakePjrtControlsOf() { return &controls; }

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = MakeTable();
  static const PJRT_Api without_parts = [] {
    PJRT_Api other = MakeTable();
    other.PJRT_Client_CreateBuffersForAsyncHostToDevice = nullptr;
    return other;
  }();
  return controls.transfers_parts ? &table : &without_parts;
}
}
