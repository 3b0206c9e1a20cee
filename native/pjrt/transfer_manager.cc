#include "native/pjrt/transfer_manager.h"

#include <string>
#include <utility>

namespace millpond::pjrt {
namespace {

bool HasTransfers(const Api& api) {
  return MILLPOND_PJRT_HAS(api, PJRT_Client_CreateBuffersForAsyncHostToDevice) &&
         MILLPOND_PJRT_HAS(api, PJRT_AsyncHostToDeviceTransferManager_Destroy) &&
         MILLPOND_PJRT_HAS(api, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer) &&
         MILLPOND_PJRT_HAS(api, PJRT_AsyncHostToDeviceTransferManager_BufferSize) &&
         MILLPOND_PJRT_HAS(api, PJRT_AsyncHostToDeviceTransferManager_TransferData) &&
         MILLPOND_PJRT_HAS(api, PJRT_Device_DefaultMemory) &&
         MILLPOND_PJRT_HAS(api, PJRT_Event_IsReady);
}

base::Status Unimplemented(const std::string& message) {
  return {base::Code::kUnimplemented, message};
}

base::StatusOr<PJRT_Memory*> MemoryOf(const Api& api, PJRT_Device* device) {
  MILLPOND_PJRT_ARGS(PJRT_Device_DefaultMemory, memory);
  memory.device = device;
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Device_DefaultMemory(&memory),
                                "asking for a device's memory");
  return memory.memory;
}

std::vector<PJRT_ShapeSpec> ShapesOf(const std::vector<HostTensor>& tensors) {
  std::vector<PJRT_ShapeSpec> shapes;
  for (const HostTensor& tensor : tensors) {
    PJRT_ShapeSpec shape{};
    shape.struct_size = PJRT_ShapeSpec_STRUCT_SIZE;
    shape.dims = tensor.dims.data();
    shape.num_dims = tensor.dims.size();
    shape.element_type = tensor.type;
    shapes.push_back(shape);
  }
  return shapes;
}

// True if the elements of the buffer are in row-major order, as far as the plugin tells.
bool IsRowMajor(const Api& api, PJRT_Buffer* buffer) {
  if (!MILLPOND_PJRT_HAS(api, PJRT_Buffer_GetMemoryLayout)) return false;
  MILLPOND_PJRT_ARGS(PJRT_Buffer_GetMemoryLayout, got);
  got.buffer = buffer;
  if (!api.ToStatus(api->PJRT_Buffer_GetMemoryLayout(&got), "").ok()) return false;
  const PJRT_Buffer_MemoryLayout_Tiled& layout = got.layout.tiled;
  if (got.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled || layout.num_tiles > 0) return false;
  for (size_t i = 0; i < layout.minor_to_major_size; ++i) {
    const size_t dim = layout.minor_to_major_size - 1 - i;
    if (layout.minor_to_major[i] != static_cast<int64_t>(dim)) return false;
  }
  return true;
}

}  // namespace

base::StatusOr<std::unique_ptr<TransferManager>> TransferManager::Make(
    const Client& client, PJRT_Device* device, const std::vector<HostTensor>& tensors) {
  const Api& api = client.api();
  if (!HasTransfers(api)) return Unimplemented(client.description() + " has no transfers in parts");
  const base::StatusOr<PJRT_Memory*> memory = MemoryOf(api, device);
  if (!memory.ok()) return memory.status();
  std::vector<PJRT_ShapeSpec> shapes = ShapesOf(tensors);
  MILLPOND_PJRT_ARGS(PJRT_Client_CreateBuffersForAsyncHostToDevice, create);
  create.client = client.get();
  create.shape_specs = shapes.data();
  create.num_shape_specs = shapes.size();
  create.memory = memory.value();
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Client_CreateBuffersForAsyncHostToDevice(&create),
                                "taking memory of the accelerator");
  std::unique_ptr<TransferManager> made(new TransferManager(api, create.transfer_manager));
  for (size_t i = 0; i < tensors.size(); ++i) {
    MILLPOND_RETURN_IF_ERROR(made->TakeBuffer(client, i, tensors[i]));
  }
  return made;
}

base::Status TransferManager::TakeBuffer(const Client& client, size_t index,
                                         const HostTensor& tensor) {
  MILLPOND_PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_BufferSize, size);
  size.transfer_manager = manager_;
  size.buffer_index = static_cast<int>(index);
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_AsyncHostToDeviceTransferManager_BufferSize(&size),
                                "asking for a size");
  MILLPOND_PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, retrieve);
  retrieve.transfer_manager = manager_;
  retrieve.buffer_index = static_cast<int>(index);
  MILLPOND_RETURN_IF_PJRT_ERROR(
      api_, api_->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(&retrieve),
      "taking a buffer");
  buffers_.emplace_back(api_, retrieve.buffer_out);
  // XLA's GPUs have row-major tensors; newer plugins tell layouts by an extension only.
  const bool is_row_major = client.is_cuda() || IsRowMajor(api_, retrieve.buffer_out);
  if (is_row_major && size.buffer_size == tensor.bytes) return {};
  return Unimplemented(client.description() + " has a layout of its own");
}

TransferManager::~TransferManager() {
  MILLPOND_PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_Destroy, destroy);
  destroy.transfer_manager = manager_;
  static_cast<void>(api_.ToStatus(api_->PJRT_AsyncHostToDeviceTransferManager_Destroy(&destroy),
                                  "ending transfers"));
}

base::Status TransferManager::Start(size_t index, const void* from, size_t offset, size_t bytes,
                                    bool is_last, PJRT_Event** copied) {
  MILLPOND_PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_TransferData, transfer);
  transfer.transfer_manager = manager_;
  transfer.buffer_index = static_cast<int>(index);
  transfer.data = from;
  transfer.offset = static_cast<int64_t>(offset);
  transfer.transfer_size = static_cast<int64_t>(bytes);
  transfer.is_last_transfer = is_last;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_,
                                api_->PJRT_AsyncHostToDeviceTransferManager_TransferData(&transfer),
                                "copying to the accelerator");
  *copied = transfer.done_with_h2d_transfer;
  return {};
}

}  // namespace millpond::pjrt
