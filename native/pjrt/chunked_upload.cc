#include "native/pjrt/chunked_upload.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "native/base/clock.h"
#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

base::Status ChunkedUpload::Send(const std::vector<HostTensor>& tensors,
                                 const std::vector<DeviceBuffer>& buffers) {
  base::Status sent = SendAll(tensors, buffers);
  // After an error too, because the caller then asks if the device is gone.
  while (!under_way_.empty()) {
    base::Status copied = AwaitOldest();
    if (sent.ok()) sent = std::move(copied);
  }
  return sent;
}

base::Status ChunkedUpload::SendAll(const std::vector<HostTensor>& tensors,
                                    const std::vector<DeviceBuffer>& buffers) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* const from = static_cast<const std::byte*>(tensors[i].elements);
    rests_.push_back({&buffers[i], from, 0, tensors[i].bytes, false});
    // A tensor without elements has one chunk too, which completes it.
    waiting_.emplace(tensors[i].bytes, i);
  }
  for (;;) {
    while (!HasRoom()) MILLPOND_RETURN_IF_ERROR(AwaitOldest());
    const std::optional<size_t> next = Next();
    if (!next) return {};
    Chunk chunk = Prepare(*next);
    while (!IsTurnOf(chunk)) MILLPOND_RETURN_IF_ERROR(AwaitOldest());
    MILLPOND_RETURN_IF_ERROR(Start(std::move(chunk)));
  }
}

bool ChunkedUpload::HasRoom() const {
  return under_way_bytes_ + limits_.chunk_bytes <= limits_.chunk_bytes * limits_.chunk_count &&
         under_way_.size() < kUnderWayCount;
}

// Returns the tensor of the next chunk. If all that have bytes left have a chunk under way, it is
// the one whose chunk ends first: what Prepare copies for it is copied meanwhile.
std::optional<size_t> ChunkedUpload::Next() const {
  if (!waiting_.empty()) {
    const auto& [smallest_bytes, smallest] = *waiting_.begin();
    return smallest_bytes <= kSmallBytes ? smallest : waiting_.rbegin()->second;
  }
  for (const Chunk& chunk : under_way_) {
    if (!chunk.is_last) return chunk.index;
  }
  return std::nullopt;
}

ChunkedUpload::Chunk ChunkedUpload::Prepare(size_t index) {
  const Rest& rest = rests_[index];
  Chunk chunk{index, std::min(limits_.chunk_bytes, rest.bytes), pinned_->Take(rest.from), nullptr,
              rest.from};
  if (chunk.pinned.end() != nullptr) {
    // The plugin copies directly only what lies in one piece.
    chunk.bytes = std::min(chunk.bytes, static_cast<size_t>(chunk.pinned.end() - rest.from));
  } else {
    chunk.bytes = std::min(chunk.bytes, kChunkBytes);
    unpinned_bytes_ += static_cast<int64_t>(chunk.bytes);
    chunk.staged = TakeStaging();
    if (chunk.staged != nullptr) {
      chunk.from = std::memcpy(chunk.staged->data(), rest.from, chunk.bytes);
    }
  }
  chunk.is_last = chunk.bytes == rest.bytes;
  return chunk;
}

// Takes a pinned staging buffer. There is none if the plugin pins nothing, or without memory.
std::unique_ptr<StagingPool::Lease> ChunkedUpload::TakeStaging() {
  auto taken = std::make_unique<StagingPool::Lease>(staging_->Take());
  return taken->is_pinned() ? std::move(taken) : nullptr;
}

bool ChunkedUpload::IsTurnOf(const Chunk& chunk) const {
  const bool has_place = chunk.pinned.end() != nullptr || under_way_.size() < kStagedCount;
  return has_place && !rests_[chunk.index].has_chunk_under_way;
}

// Looks at the event until it has happened, for limits_.poll_ns at most.
void ChunkedUpload::PollFor(PJRT_Event* event) const {
  const int64_t end_ns = base::MonotonicNs() + limits_.poll_ns;
  while (base::MonotonicNs() < end_ns) {
    const base::StatusOr<bool> has_happened = api_.HasHappened(event);
    if (!has_happened.ok() || has_happened.value()) return;
    std::this_thread::yield();
  }
}

// Returns false if the device is gone. The plugin may still copy from memory that is neither pinned
// nor a staging buffer, which is the version's: there is no end to that wait.
bool ChunkedUpload::Await(const Chunk& chunk, base::Status* copied) {
  PollFor(chunk.copied);
  const bool is_as_it_is = chunk.pinned.end() == nullptr && chunk.staged == nullptr;
  if (!is_as_it_is) return api_.AwaitFor(chunk.copied, limits_.stall_ns, "copying", copied);
  *copied = api_.Await(chunk.copied, "copying");
  return true;
}

void ChunkedUpload::Abandon(Chunk chunk) {
  KeepForEver(chunk.copied);
  chunk.pinned.Abandon();
  if (chunk.staged != nullptr) chunk.staged->Abandon();
}

base::Status ChunkedUpload::AwaitOldest() {
  Chunk oldest = std::move(under_way_.front());
  under_way_.pop_front();
  under_way_bytes_ -= oldest.bytes;
  base::Status copied;
  if (!Await(oldest, &copied)) {
    is_abandoned_ = true;
    Abandon(std::move(oldest));
    for (Chunk& chunk : std::exchange(under_way_, {})) Abandon(std::move(chunk));
    return copied;
  }
  MILLPOND_RETURN_IF_ERROR(copied);
  if (oldest.is_last) return {};
  Rest& rest = rests_[oldest.index];
  rest.has_chunk_under_way = false;
  waiting_.emplace(rest.bytes, oldest.index);
  return rest.buffer->CheckParts();
}

base::Status ChunkedUpload::Start(Chunk chunk) {
  Rest& rest = rests_[chunk.index];
  MILLPOND_RETURN_IF_ERROR(transfers_->Start(chunk.index, chunk.from, rest.offset, chunk.bytes,
                                             chunk.is_last, &chunk.copied));
  waiting_.erase({rest.bytes, chunk.index});
  rest.from += chunk.bytes;
  rest.offset += chunk.bytes;
  rest.bytes -= chunk.bytes;
  rest.has_chunk_under_way = true;
  under_way_bytes_ += chunk.bytes;
  under_way_.push_back(std::move(chunk));
  return {};
}

}  // namespace millpond::pjrt
