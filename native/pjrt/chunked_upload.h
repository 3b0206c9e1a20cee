#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "native/base/status.h"
#include "native/pjrt/api.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/pinned_memory.h"
#include "native/pjrt/staging.h"
#include "native/pjrt/transfer_manager.h"

namespace millpond::pjrt {

// Copies tensors to an accelerator in chunks, two at a time, so that the transfers of runs get
// between. A chunk of pinned memory is copied as it is. Any other chunk is copied to a pinned
// staging buffer first, which takes five times as long; if the plugin pins nothing, it is copied as
// it is.
//
// Thread: one. Borrows all that it is made of, and the tensors until the destructor, which waits
// for the chunks under way.
class ChunkedUpload {
 public:
  // 80 µs of a link of 52 GB/s.
  static constexpr size_t kChunkBytes = size_t{4} << 20U;
  static constexpr size_t kUnderWayBytes = 2 * kChunkBytes;
  // Small tensors have small chunks. Each takes some 10 µs, whatever its size.
  static constexpr size_t kUnderWayCount = 16;
  // If the chunk needs a staging buffer.
  static constexpr size_t kStagedCount = 4;

  ChunkedUpload(const Api& api, TransferManager* transfers, PinnedMemory* pinned,
                StagingPool* staging)
      : api_(api), transfers_(transfers), pinned_(pinned), staging_(staging) {}
  ~ChunkedUpload() { static_cast<void>(Await()); }
  ChunkedUpload(const ChunkedUpload&) = delete;
  ChunkedUpload& operator=(const ChunkedUpload&) = delete;

  // Starts to copy all of the tensor of that index. Waits until the last chunks have their turn.
  base::Status Send(size_t index, const HostTensor& tensor);
  // Waits for the chunks under way, and returns the first error.
  base::Status Await();
  // The bytes that were copied to a staging buffer first, here or by the plugin.
  int64_t unpinned_bytes() const { return unpinned_bytes_; }

 private:
  struct Chunk {
    PJRT_Event* copied = nullptr;
    size_t bytes = 0;
    PinnedMemory::Lease pinned;                  // empty if the memory is not pinned
    std::unique_ptr<StagingPool::Lease> staged;  // null if it is copied as it is
  };
  // A part of a tensor, which becomes a chunk.
  struct Part {
    size_t index = 0;  // of the tensor
    const std::byte* from = nullptr;
    size_t offset = 0;
    size_t bytes = 0;
    bool is_last = false;
  };

  base::Status SendPart(const Part& part, Chunk chunk);
  std::unique_ptr<StagingPool::Lease> TakeStaging();
  base::Status AwaitRoom(size_t bytes, size_t count_max);
  base::Status AwaitOldest();

  const Api api_;
  TransferManager* const transfers_;
  PinnedMemory* const pinned_;
  StagingPool* const staging_;
  std::deque<Chunk> under_way_;
  size_t under_way_bytes_ = 0;
  int64_t unpinned_bytes_ = 0;
};

}  // namespace millpond::pjrt
