#include "native/pjrt/device_buffer.h"

namespace millpond::pjrt {

void DeviceBuffer::Free() {
  if (buffer_ == nullptr) return;
  MILLPOND_PJRT_ARGS(PJRT_Buffer_Destroy, destroy);
  destroy.buffer = buffer_;
  static_cast<void>(api_.ToStatus(api_->PJRT_Buffer_Destroy(&destroy), "freeing a buffer"));
}

base::Status DeviceBuffer::AwaitReady() const {
  MILLPOND_PJRT_ARGS(PJRT_Buffer_ReadyEvent, ready);
  ready.buffer = buffer_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Buffer_ReadyEvent(&ready), "waiting for a buffer");
  return api_.Await(ready.event, "writing a buffer");
}

bool DeviceBuffer::AwaitReadyFor(int64_t timeout_ns, base::Status* status) const {
  MILLPOND_PJRT_ARGS(PJRT_Buffer_ReadyEvent, ready);
  ready.buffer = buffer_;
  *status = api_.ToStatus(api_->PJRT_Buffer_ReadyEvent(&ready), "waiting for a buffer");
  return !status->ok() || api_.AwaitFor(ready.event, timeout_ns, "writing a buffer", status);
}

base::Status DeviceBuffer::CheckParts() const {
  MILLPOND_PJRT_ARGS(PJRT_Buffer_ReadyEvent, ready);
  ready.buffer = buffer_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Buffer_ReadyEvent(&ready), "looking at a buffer");
  const base::StatusOr<bool> is_ready = api_.HasHappened(ready.event);
  if (!is_ready.ok() || !is_ready.value()) {
    api_.Free(ready.event);
    return is_ready.status();
  }
  MILLPOND_RETURN_IF_ERROR(api_.Await(ready.event, "copying to the accelerator"));
  return {base::Code::kUnimplemented, "a buffer is complete before its last part"};
}

base::Status DeviceBuffer::StartCopy(void* to, size_t bytes, PJRT_Event** copied) const {
  MILLPOND_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, copy);
  copy.src = buffer_;
  copy.dst = to;
  copy.dst_size = bytes;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Buffer_ToHostBuffer(&copy), "copying an output");
  *copied = copy.event;
  return {};
}

bool DeviceBuffer::IsThere() const {
  if (!MILLPOND_PJRT_HAS(api_, PJRT_Buffer_IsDeleted)) return true;
  MILLPOND_PJRT_ARGS(PJRT_Buffer_IsDeleted, deleted);
  deleted.buffer = buffer_;
  if (!api_.ToStatus(api_->PJRT_Buffer_IsDeleted(&deleted), "looking at a buffer").ok())
    return true;
  return !deleted.is_deleted;
}

base::StatusOr<size_t> DeviceBuffer::SizeBytes() const {
  MILLPOND_PJRT_ARGS(PJRT_Buffer_OnDeviceSizeInBytes, size);
  size.buffer = buffer_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Buffer_OnDeviceSizeInBytes(&size),
                                "asking for a buffer's size");
  return size.on_device_size_in_bytes;
}

}  // namespace millpond::pjrt
