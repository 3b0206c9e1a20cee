#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/client.h"
#include "native/pjrt/device_buffer.h"

namespace millpond::pjrt {

// Tensors on an accelerator that are written in parts, in any order.
//
// Thread: one. Owner: an upload, which also has the buffers. The client outlives it. The destructor
// waits for the transfers under way; a buffer that is not complete then is in error.
class TransferManager {
 public:
  // Takes the memory of all of `tensors` on `device`. Returns RESOURCE_EXHAUSTED if it has no room,
  // and UNIMPLEMENTED if the plugin has no such transfers, or lays a tensor out in another way than
  // this process: then a part of it has no place there.
  static base::StatusOr<std::unique_ptr<TransferManager>> Make(
      const Client& client, PJRT_Device* device, const std::vector<HostTensor>& tensors);
  ~TransferManager();
  TransferManager(const TransferManager&) = delete;
  TransferManager& operator=(const TransferManager&) = delete;

  // Hands over the buffers, one for each tensor, once.
  std::vector<DeviceBuffer> TakeBuffers() { return std::move(buffers_); }
  // Starts to copy `bytes` from `from` to the tensor of that index, at `offset`. After the last
  // part that is started for a tensor, `is_last`, and all others, it is complete. `*copied` is the
  // event after which `from` is not read any more; it belongs to the caller. If the copy fails,
  // XLA's event reports success, and DeviceBuffer::CheckParts returns the error from then on.
  // Danger: after that XLA aborts the process if it is given another part of the tensor.
  base::Status Start(size_t index, const void* from, size_t offset, size_t bytes, bool is_last,
                     PJRT_Event** copied);

 private:
  TransferManager(const Api& api, PJRT_AsyncHostToDeviceTransferManager* manager)
      : api_(api), manager_(manager) {}
  base::Status TakeBuffer(const Client& client, size_t index, const HostTensor& tensor);

  const Api api_;
  PJRT_AsyncHostToDeviceTransferManager* const manager_;
  std::vector<DeviceBuffer> buffers_;
};

}  // namespace millpond::pjrt
