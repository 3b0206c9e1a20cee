#include "native/pjrt/chunked_upload.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millpond::pjrt {

// A tensor without elements has one chunk too, which completes it.
base::Status ChunkedUpload::Send(size_t index, const HostTensor& tensor) {
  Part part{index, static_cast<const std::byte*>(tensor.elements), 0, 0, false};
  do {
    Chunk chunk{nullptr, 0, pinned_->Take(part.from), nullptr};
    part.bytes = std::min(kChunkBytes, tensor.bytes - part.offset);
    if (chunk.pinned.end() != nullptr) {
      // The plugin copies directly only what lies in one piece.
      part.bytes = std::min(part.bytes, static_cast<size_t>(chunk.pinned.end() - part.from));
    }
    part.is_last = part.offset + part.bytes == tensor.bytes;
    MILLPOND_RETURN_IF_ERROR(SendPart(part, std::move(chunk)));
    part.offset += part.bytes;
    part.from += part.bytes;
  } while (!part.is_last);
  return {};
}

base::Status ChunkedUpload::SendPart(const Part& part, Chunk chunk) {
  const bool is_pinned = chunk.pinned.end() != nullptr;
  MILLPOND_RETURN_IF_ERROR(AwaitRoom(part.bytes, is_pinned ? kUnderWayCount : kStagedCount));
  const void* from = part.from;
  if (!is_pinned) {
    unpinned_bytes_ += static_cast<int64_t>(part.bytes);
    chunk.staged = TakeStaging();
    if (chunk.staged != nullptr) from = std::memcpy(chunk.staged->data(), part.from, part.bytes);
  }
  MILLPOND_RETURN_IF_ERROR(
      transfers_->Start(part.index, from, part.offset, part.bytes, part.is_last, &chunk.copied));
  chunk.bytes = part.bytes;
  under_way_bytes_ += chunk.bytes;
  under_way_.push_back(std::move(chunk));
  return {};
}

// Takes a pinned staging buffer. There is none if the plugin pins nothing, or without memory.
std::unique_ptr<StagingPool::Lease> ChunkedUpload::TakeStaging() {
  auto taken = std::make_unique<StagingPool::Lease>(staging_->Take());
  return taken->is_pinned() ? std::move(taken) : nullptr;
}

base::Status ChunkedUpload::AwaitRoom(size_t bytes, size_t count_max) {
  while (!under_way_.empty() &&
         (under_way_bytes_ + bytes > kUnderWayBytes || under_way_.size() >= count_max)) {
    MILLPOND_RETURN_IF_ERROR(AwaitOldest());
  }
  return {};
}

base::Status ChunkedUpload::AwaitOldest() {
  const Chunk oldest = std::move(under_way_.front());
  under_way_.pop_front();
  under_way_bytes_ -= oldest.bytes;
  return api_.Await(oldest.copied, "copying");
}

base::Status ChunkedUpload::Await() {
  base::Status first;
  while (!under_way_.empty()) {
    base::Status copied = AwaitOldest();
    if (first.ok()) first = std::move(copied);
  }
  return first;
}

}  // namespace millpond::pjrt
