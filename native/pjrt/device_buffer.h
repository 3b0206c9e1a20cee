#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/table_contents.h"

namespace millpond::pjrt {

// A tensor in this process's memory, in row-major order. Borrows its elements.
struct HostTensor {
  PJRT_Buffer_Type type = PJRT_Buffer_Type_INVALID;
  std::vector<int64_t> dims;
  const void* elements = nullptr;
  size_t bytes = 0;  // of all elements
  // Null if nothing is known, so no other version has it.
  std::shared_ptr<const TableContents> contents = nullptr;
};

// A tensor in an accelerator's memory, which the destructor frees. The accelerator's client must
// outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer(const Api& api, PJRT_Buffer* buffer) : api_(api), buffer_(buffer) {}
  ~DeviceBuffer() { Free(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }

  PJRT_Buffer* get() const { return buffer_; }

  // Waits until the accelerator has written the buffer, and returns the error of what wrote it.
  base::Status AwaitReady() const;
  // The same within `timeout_ns` (Api::AwaitFor).
  bool AwaitReadyFor(int64_t timeout_ns, base::Status* status) const;
  // Returns the error of a part that was copied to the buffer, before its last part is started: OK
  // if all parts up to now are there or under way. Returns UNIMPLEMENTED if the plugin calls the
  // buffer complete all the same.
  base::Status CheckParts() const;
  // Starts to copy all elements, `bytes` of them, to `to`, in row-major order. `*copied` is the
  // event after which they are there; it belongs to the caller.
  base::Status StartCopy(void* to, size_t bytes, PJRT_Event** copied) const;
  // False if a program has taken over its memory. True if the plugin does not tell.
  bool IsThere() const;
  // The bytes that it takes on the accelerator.
  base::StatusOr<size_t> SizeBytes() const;

 private:
  void Free();

  Api api_;
  PJRT_Buffer* buffer_;
};

}  // namespace millpond::pjrt
