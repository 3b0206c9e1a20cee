// A PJRT plugin whose devices fail as they are told, over another one (plugin_over.h).
//
// The faults are files in the directory PLUGIN_DIRECTORY:
//   hold    a later transfer of parameters waits while the file is there;
//   fail    it fails;
//   crash   it removes the file, and ends the process;
//   lost    runs, copies to a device and copies back fail;
//   hang    runs that begin do not end, nor do copies of their outputs.
// A later transfer is one after the first of a version's parameters, so that an upload is under
// way. Each adds a line to the file `transfers` there.
//
// It counts the memory in use itself, by all buffers that are not freed. The count of XLA's
// allocator for GPUs was 9 % higher, and differed by 0.4 MB for the same versions: it counts the
// pieces that it gives, which may be larger than what was asked for.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "loadtest/drive/plugin_over.h"

namespace {

struct Buffer {
  PJRT_Device* device = nullptr;
  int64_t bytes = 0;
  bool hangs = false;
};

std::mutex lock;
std::map<PJRT_Buffer*, Buffer> buffers;                             // guarded by the lock
std::set<PJRT_AsyncHostToDeviceTransferManager*> begun;             // as this
std::map<PJRT_Device*, int64_t> used_bytes;                         // as this
PJRT_Event* const never = reinterpret_cast<PJRT_Event*>(&buffers);  // of a run that hangs

// Any error of the plugin below; this one is for arguments without a size.
PJRT_Error* Error() {
  PJRT_AsyncHostToDeviceTransferManager_TransferData_Args none{};
  return over->PJRT_AsyncHostToDeviceTransferManager_TransferData(&none);
}

void Free(PJRT_Error* error) {
  PJRT_Error_Destroy_Args destroy{};
  destroy.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  over->PJRT_Error_Destroy(&destroy);
}

void Count(PJRT_Buffer* buffer, bool hangs = false) {
  PJRT_Buffer_OnDeviceSizeInBytes_Args size{};
  size.struct_size = PJRT_Buffer_OnDeviceSizeInBytes_Args_STRUCT_SIZE;
  size.buffer = buffer;
  PJRT_Buffer_Device_Args device{};
  device.struct_size = PJRT_Buffer_Device_Args_STRUCT_SIZE;
  device.buffer = buffer;
  if (over->PJRT_Buffer_OnDeviceSizeInBytes(&size) != nullptr) std::abort();
  if (over->PJRT_Buffer_Device(&device) != nullptr) std::abort();
  const std::lock_guard<std::mutex> locked(lock);
  const auto bytes = static_cast<int64_t>(size.on_device_size_in_bytes);
  buffers[buffer] = {device.device, bytes, hangs};
  used_bytes[device.device] += bytes;
}

bool Hangs(PJRT_Buffer* buffer) {
  const std::lock_guard<std::mutex> locked(lock);
  const auto found = buffers.find(buffer);
  return found != buffers.end() && found->second.hangs;
}

PJRT_Error* DestroyBuffer(PJRT_Buffer_Destroy_Args* args) {
  {
    const std::lock_guard<std::mutex> locked(lock);
    const auto found = buffers.find(args->buffer);
    if (found != buffers.end()) {
      used_bytes[found->second.device] -= found->second.bytes;
      buffers.erase(found);
    }
  }
  return over->PJRT_Buffer_Destroy(args);
}

PJRT_Error* MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  if (PJRT_Error* const error = over->PJRT_Device_MemoryStats(args); error != nullptr) {
    Free(error);
    args->bytes_limit_is_set = false;
  }
  const std::lock_guard<std::mutex> locked(lock);
  args->bytes_in_use = used_bytes[args->device];
  return nullptr;
}

PJRT_Error* RetrieveBuffer(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args* args) {
  PJRT_Error* const error = over->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(args);
  if (error == nullptr) Count(args->buffer_out);
  return error;
}

bool IsLater(PJRT_AsyncHostToDeviceTransferManager* manager) {
  const std::lock_guard<std::mutex> locked(lock);
  return !begun.insert(manager).second;
}

PJRT_Error* TransferData(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args* args) {
  if (IsLater(args->transfer_manager)) {
    std::ofstream(PathOf("transfers"), std::ios::app) << args->transfer_size << std::endl;
    HoldWhile("hold");
    if (unlink(PathOf("crash").c_str()) == 0) std::abort();
    if (IsThere("fail")) return Error();
  }
  if (IsThere("lost")) return Error();
  return over->PJRT_AsyncHostToDeviceTransferManager_TransferData(args);
}

PJRT_Error* DestroyManager(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args* args) {
  {
    const std::lock_guard<std::mutex> locked(lock);
    begun.erase(args->transfer_manager);
  }
  return over->PJRT_AsyncHostToDeviceTransferManager_Destroy(args);
}

PJRT_Error* BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  if (IsThere("lost")) return Error();
  PJRT_Error* const error = over->PJRT_Client_BufferFromHostBuffer(args);
  if (error == nullptr) Count(args->buffer);
  return error;
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (IsThere("lost")) return Error();
  PJRT_Error* const error = over->PJRT_LoadedExecutable_Execute(args);
  if (error != nullptr) return error;
  PJRT_LoadedExecutable_GetExecutable_Args get{};
  get.struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE;
  get.loaded_executable = args->executable;
  if (over->PJRT_LoadedExecutable_GetExecutable(&get) != nullptr) std::abort();
  PJRT_Executable_NumOutputs_Args outputs{};
  outputs.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE;
  outputs.executable = get.executable;
  if (over->PJRT_Executable_NumOutputs(&outputs) != nullptr) std::abort();
  PJRT_Executable_Destroy_Args destroy{};
  destroy.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE;
  destroy.executable = get.executable;
  if (over->PJRT_Executable_Destroy(&destroy) != nullptr) std::abort();
  const bool hangs = IsThere("hang");
  for (size_t i = 0; i < outputs.num_outputs; ++i) Count(args->output_lists[0][i], hangs);
  return nullptr;
}

PJRT_Error* ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  if (!Hangs(args->buffer)) return over->PJRT_Buffer_ReadyEvent(args);
  args->event = never;
  return nullptr;
}

PJRT_Error* ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  if (IsThere("lost")) return Error();
  if (!Hangs(args->src)) return over->PJRT_Buffer_ToHostBuffer(args);
  args->event = never;
  return nullptr;
}

PJRT_Error* IsReady(PJRT_Event_IsReady_Args* args) {
  if (args->event != never) return over->PJRT_Event_IsReady(args);
  args->is_ready = false;
  return nullptr;
}

PJRT_Error* Await(PJRT_Event_Await_Args* args) {
  while (args->event == never) std::this_thread::sleep_for(std::chrono::seconds(1));
  return over->PJRT_Event_Await(args);
}

PJRT_Error* OnReady(PJRT_Event_OnReady_Args* args) {
  return args->event == never ? nullptr : over->PJRT_Event_OnReady(args);
}

PJRT_Error* DestroyEvent(PJRT_Event_Destroy_Args* args) {
  return args->event == never ? nullptr : over->PJRT_Event_Destroy(args);
}

}  // namespace

extern "C" const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = [] {
    PJRT_Api copy = LoadOver();
    copy.PJRT_Buffer_Destroy = DestroyBuffer;
    copy.PJRT_Device_MemoryStats = MemoryStats;
    copy.PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer = RetrieveBuffer;
    copy.PJRT_AsyncHostToDeviceTransferManager_TransferData = TransferData;
    copy.PJRT_AsyncHostToDeviceTransferManager_Destroy = DestroyManager;
    copy.PJRT_Client_BufferFromHostBuffer = BufferFromHostBuffer;
    copy.PJRT_LoadedExecutable_Execute = Execute;
    copy.PJRT_Buffer_ReadyEvent = ReadyEvent;
    copy.PJRT_Buffer_ToHostBuffer = ToHostBuffer;
    copy.PJRT_Event_IsReady = IsReady;
    copy.PJRT_Event_Await = Await;
    copy.PJRT_Event_OnReady = OnReady;
    copy.PJRT_Event_Destroy = DestroyEvent;
    return copy;
  }();
  return &table;
}
