#include "native/pjrt/staging.h"

#include <new>
#include <utility>

namespace millpond::pjrt {
namespace {

// Whole pages, because that is what a plugin pins.
constexpr std::align_val_t kAlignment{4096};

}  // namespace

std::unique_ptr<StagingBuffer> StagingBuffer::Make(std::shared_ptr<const Client> client,
                                                   base::ByteBudget* budget, size_t bytes) {
  base::ByteBudget::Share share(budget);
  if (!share.Resize(static_cast<int64_t>(bytes))) return nullptr;
  auto* const data = static_cast<char*>(::operator new(bytes, kAlignment, std::nothrow));
  if (data == nullptr) return nullptr;
  return std::unique_ptr<StagingBuffer>(
      new StagingBuffer(std::move(client), std::move(share), data, bytes));
}

// A buffer that cannot be pinned serves all the same: the plugin copies it once more.
StagingBuffer::StagingBuffer(std::shared_ptr<const Client> client, base::ByteBudget::Share share,
                             char* data, size_t bytes)
    : client_(std::move(client)),
      share_(std::move(share)),
      data_(data),
      is_pinned_(client_->Pin(data_, bytes).ok()) {}

StagingBuffer::~StagingBuffer() {
  if (is_pinned_) client_->Unpin(data_);
  ::operator delete(data_, kAlignment);
}

StagingPool::Lease StagingPool::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<StagingBuffer> buffer = std::move(free_.back());
      free_.pop_back();
      return {this, std::move(buffer)};
    }
    if (made_count_ == kBuffersMax) return {this, nullptr};
    ++made_count_;
  }
  // Without the lock, because pinning takes long.
  std::unique_ptr<StagingBuffer> made = StagingBuffer::Make(client_, budget_, bytes_);
  if (made == nullptr) {
    const std::lock_guard lock(mutex_);
    --made_count_;
  }
  return {this, std::move(made)};
}

void StagingPool::Return(std::unique_ptr<StagingBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

}  // namespace millpond::pjrt
