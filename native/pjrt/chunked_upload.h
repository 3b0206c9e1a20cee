#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/memory/page_pins.h"
#include "native/pjrt/api.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/pinned_memory.h"
#include "native/pjrt/staging.h"
#include "native/pjrt/transfer_manager.h"

namespace millpond::pjrt {

// Copies tensors to an accelerator in chunks, three at a time, so that the transfers of runs get
// between. A chunk of pinned memory is copied as it is. Any other chunk is copied to a pinned
// staging buffer first, which takes five times as long; if the plugin pins nothing, it is copied as
// it is.
//
// Theory of operation. XLA's client aborts the process if it is given a chunk of a tensor of which
// another chunk has failed (CHECK(definition_events_[buffer_index]) in
// xla/pjrt/host_to_device_transfer_manager.cc), and the event of the failed chunk reports success.
// Only the tensor's readiness has the error, and it has it before that event happens. So a tensor
// has one chunk under way at most, and the next one is started after a look at the readiness. The
// other places are for chunks of other tensors. The tensor with the most bytes left comes first: so
// there are enough as long as possible. Only the smallest tensors come before: at the end the link
// would wait for each of them.
//
// Thread: one. Borrows all that it is made of, and the tensors until the destructor, which waits
// for the chunks under way.
class ChunkedUpload {
 public:
  // A chunk that is copied to a staging buffer first.
  static constexpr size_t kChunkBytes = size_t{4} << 20U;
  // The most that is under way at once: the number of chunks, and the bytes of each. On an H200
  // with a link of 52 GB/s, 500 MB take 11.4 ms in two chunks of 10 MiB, 9.9 in three, and 9.7 in
  // four (native/bench/upload_bench.cc). A run's inputs wait for all of them: 0.6 ms. Beside
  // requests four are no faster than three.
  struct Limits {
    size_t chunk_bytes = memory::PinnedPieces::kPieceBytes;
    size_t chunk_count = 3;
    // A device that ends no chunk for so long is gone. A chunk waits for those before it at most,
    // and all for the transfers of some runs.
    int64_t stall_ns = kStallNs;
    // The end of a chunk is looked for so long before the thread sleeps, because it wakes late.
    int64_t poll_ns = 300'000;
  };
  // Tensors of so many bytes come first.
  static constexpr size_t kSmallBytes = size_t{256} << 10U;
  // Small tensors have small chunks. Each takes some 10 µs, whatever its size.
  static constexpr size_t kUnderWayCount = 16;
  // If the chunk needs a staging buffer.
  static constexpr size_t kStagedCount = 4;

  // Other limits than these are for native/bench/upload_bench.cc; the buffers of `staging` have
  // kChunkBytes.
  ChunkedUpload(const Api& api, TransferManager* transfers, PinnedMemory* pinned,
                StagingPool* staging)
      : ChunkedUpload(api, transfers, pinned, staging, Limits()) {}
  ChunkedUpload(const Api& api, TransferManager* transfers, PinnedMemory* pinned,
                StagingPool* staging, const Limits& limits)
      : api_(api), transfers_(transfers), pinned_(pinned), staging_(staging), limits_(limits) {}
  ChunkedUpload(const ChunkedUpload&) = delete;
  ChunkedUpload& operator=(const ChunkedUpload&) = delete;

  // Copies `tensors` to `buffers`, the ones of the transfer manager, and waits for the end of all
  // chunks. Returns the first error, after which nothing is started any more. Called once.
  //
  // If the device is gone, it may read its chunks at any time, so what they are read from stays
  // pinned, and no wait for one takes more than a stall. If the upload is_abandoned by then, the
  // caller must keep the buffers and the transfer manager for ever.
  base::Status Send(const std::vector<HostTensor>& tensors,
                    const std::vector<DeviceBuffer>& buffers);
  bool is_abandoned() const { return is_abandoned_; }
  // The bytes that were copied to a staging buffer first, here or by the plugin.
  int64_t unpinned_bytes() const { return unpinned_bytes_; }

 private:
  // A tensor on its way.
  struct Rest {
    const DeviceBuffer* buffer = nullptr;
    const std::byte* from = nullptr;
    size_t offset = 0;
    size_t bytes = 0;  // that no chunk has taken
    bool has_chunk_under_way = false;
  };
  struct Chunk {
    size_t index = 0;  // of the tensor
    size_t bytes = 0;
    PinnedMemory::Lease pinned;                  // empty if the memory is not pinned
    std::unique_ptr<StagingPool::Lease> staged;  // null if it is copied as it is
    const void* from = nullptr;
    bool is_last = false;
    PJRT_Event* copied = nullptr;
  };

  base::Status SendAll(const std::vector<HostTensor>& tensors,
                       const std::vector<DeviceBuffer>& buffers);
  bool HasRoom() const;
  std::optional<size_t> Next() const;
  Chunk Prepare(size_t index);
  std::unique_ptr<StagingPool::Lease> TakeStaging();
  bool IsTurnOf(const Chunk& chunk) const;
  base::Status AwaitOldest();
  void PollFor(PJRT_Event* event) const;
  bool Await(const Chunk& chunk, base::Status* copied);
  void Abandon(Chunk chunk);
  base::Status Start(Chunk chunk);

  const Api api_;
  TransferManager* const transfers_;
  PinnedMemory* const pinned_;
  StagingPool* const staging_;
  const Limits limits_;
  std::vector<Rest> rests_;
  // The bytes and the index of each tensor that has a chunk to send and none under way.
  std::set<std::pair<size_t, size_t>> waiting_;
  std::deque<Chunk> under_way_;
  size_t under_way_bytes_ = 0;
  int64_t unpinned_bytes_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace millpond::pjrt
