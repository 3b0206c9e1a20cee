#include "native/pjrt/staging.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {
namespace {

// Whole pages, because that is what a plugin pins.
constexpr size_t kPageBytes = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::unique_ptr<StagingBlock> StagingBlock::Make(std::shared_ptr<DriverPins> pins,
                                                 std::shared_ptr<base::ByteBudget> budget,
                                                 size_t bytes) {
  base::ByteBudget::Share share(budget.get());
  if (!share.Resize(static_cast<int64_t>(bytes))) return nullptr;
  bytes = RoundUp(bytes, kPageBytes);
  auto* const data =
      static_cast<char*>(::operator new (bytes, std::align_val_t{kPageBytes}, std::nothrow));
  if (data == nullptr) return nullptr;
  std::shared_ptr<Memory> memory(new Memory{std::move(budget), std::move(share), data});
  return std::unique_ptr<StagingBlock>(new StagingBlock(std::move(pins), std::move(memory), bytes));
}

// A block that cannot be pinned serves all the same: the plugin copies it once more.
StagingBlock::StagingBlock(std::shared_ptr<DriverPins> pins, std::shared_ptr<Memory> memory,
                           size_t bytes)
    : pins_(std::move(pins)),
      memory_(std::move(memory)),
      bytes_(bytes),
      is_pinned_(pins_->Pin(data(), bytes, memory_)) {}

StagingBlock::~StagingBlock() {
  if (is_abandoned_) KeepForEver(memory_);
  if (is_abandoned_ || !is_pinned_) return;
  pins_->Unpin(data(), [memory = memory_](bool is_unpinned) {
    if (!is_unpinned) KeepForEver(memory);
  });
}

StagingBlock::Memory::~Memory() { ::operator delete (data, std::align_val_t{kPageBytes}); }

StagingPool::StagingPool(std::shared_ptr<DriverPins> pins, std::shared_ptr<base::ByteBudget> budget,
                         size_t bytes)
    : pins_(std::move(pins)),
      budget_(std::move(budget)),
      bytes_(RoundUp(bytes, 64)),
      at_once_(std::clamp<size_t>(kBytesAtOnce / std::max<size_t>(bytes_, 1), 1, kBuffersAtOnce)) {}

void StagingPool::Prepare() {
  {
    const std::lock_guard lock(mutex_);
    if (made_count_ > 0) return;
    made_count_ += at_once_;
  }
  static_cast<void>(Make());
}

StagingPool::Lease StagingPool::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const Buffer buffer = free_.back();
      free_.pop_back();
      return {this, buffer};
    }
    if (made_count_ + at_once_ > kBuffersMax) return {this, Buffer()};
    made_count_ += at_once_;
  }
  return Make();
}

// Without the lock, because pinning takes long.
StagingPool::Lease StagingPool::Make() {
  std::unique_ptr<StagingBlock> made = StagingBlock::Make(pins_, budget_, at_once_ * bytes_);
  const std::lock_guard lock(mutex_);
  if (made == nullptr) {
    made_count_ -= at_once_;
    return {this, Buffer()};
  }
  const Buffer first{made->data(), made->is_pinned()};
  blocks_.push_back(std::move(made));
  for (size_t i = 1; i < at_once_; ++i) {
    free_.push_back({first.data + i * bytes_, first.is_pinned});
  }
  return {this, first};
}

void StagingPool::Return(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(buffer);
}

void StagingPool::Abandon(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  for (const auto& block : blocks_) {
    if (block->Contains(buffer.data)) block->Abandon();
  }
}

std::shared_ptr<StagingPool> StagingPools::Get(const std::string& model, size_t bytes) {
  std::shared_ptr<StagingPool> pool;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = pools_.begin(); entry != pools_.end();) {
      entry = entry->second.expired() ? pools_.erase(entry) : std::next(entry);
    }
    std::weak_ptr<StagingPool>& entry = pools_[{model, bytes}];
    pool = entry.lock();
    if (pool == nullptr) entry = pool = std::make_shared<StagingPool>(pins_, budget_, bytes);
  }
  pool->Prepare();
  return pool;
}

}  // namespace millpond::pjrt
