#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/pjrt/driver_pins.h"

namespace millpond::pjrt {

// Memory of this process from which an accelerator copies, and to which it does. It is pinned if
// the plugin can (PJRT_Client_DmaMap), so that the accelerator itself copies. For other memory XLA
// has a thread of the process copy each tensor once more, one after the other (CUDA,
// se_raw_buffer).
class StagingBlock {
 public:
  // Takes `bytes` from `budget`. Returns null if it, or this machine, has no more.
  static std::unique_ptr<StagingBlock> Make(std::shared_ptr<DriverPins> pins,
                                            std::shared_ptr<base::ByteBudget> budget, size_t bytes);
  // Memory that the driver is late to unpin is freed, and returned to the budget, only then. If it
  // refuses, as after the loss of a device, that never happens: the allocator must not hand out
  // what a device may write.
  ~StagingBlock();
  StagingBlock(const StagingBlock&) = delete;
  StagingBlock& operator=(const StagingBlock&) = delete;

  char* data() const { return memory_->data; }
  bool is_pinned() const { return is_pinned_; }
  bool Contains(const char* place) const { return place >= data() && place < data() + bytes_; }
  // A device that is gone may use the memory, so it is never freed, and stays in the budget.
  void Abandon() { is_abandoned_ = true; }

 private:
  struct Memory {
    ~Memory();
    const std::shared_ptr<base::ByteBudget> budget;
    base::ByteBudget::Share share;
    char* const data;
  };

  StagingBlock(std::shared_ptr<DriverPins> pins, std::shared_ptr<Memory> memory, size_t bytes);

  const std::shared_ptr<DriverPins> pins_;
  const std::shared_ptr<Memory> memory_;
  const size_t bytes_;
  const bool is_pinned_;
  bool is_abandoned_ = false;
};

// The staging buffers of one size of a program. Buffers are made for the first run that finds none
// free, several at once, because pinning stops the runs under way for a moment. They serve later
// runs until the end of the pool, which must outlive all leases.
//
// Thread: any number at once. Cost of a lease: a mutex, twice.
class StagingPool {
 public:
  // Runs of one size at once beyond this many, which is rare, use other memory.
  static constexpr size_t kBuffersMax = 32;
  // The buffers that are made at once: so many, or as many as have this size, but one at least.
  static constexpr size_t kBuffersAtOnce = 8;
  static constexpr size_t kBytesAtOnce = size_t{8} << 20U;

  class Lease;

  // `bytes` are those of a buffer, 1 or more.
  StagingPool(std::shared_ptr<DriverPins> pins, std::shared_ptr<base::ByteBudget> budget,
              size_t bytes);

  // Makes the first buffers, if there are none yet.
  void Prepare();
  // Lends a buffer. The lease has none if all are in use, or if the budget has no more bytes.
  Lease Take();

 private:
  struct Buffer {
    char* data = nullptr;
    bool is_pinned = false;
  };

  // Makes buffers and lends one of them. The caller has counted them.
  Lease Make();
  void Return(Buffer buffer);
  void Abandon(Buffer buffer);

  const std::shared_ptr<DriverPins> pins_;
  const std::shared_ptr<base::ByteBudget> budget_;
  const size_t bytes_;  // of a buffer; a multiple of a cache line
  const size_t at_once_;
  std::mutex mutex_;
  // All guarded by the mutex.
  std::vector<std::unique_ptr<StagingBlock>> blocks_;
  std::vector<Buffer> free_;
  size_t made_count_ = 0;
};

// A buffer for one run, which the destructor gives back.
class StagingPool::Lease {
 public:
  Lease(StagingPool* pool, Buffer buffer) : pool_(pool), buffer_(buffer) {}
  ~Lease() {
    if (buffer_.data != nullptr) pool_->Return(buffer_);
  }
  Lease(Lease&& other) noexcept
      : pool_(other.pool_), buffer_(std::exchange(other.buffer_, Buffer())) {}
  Lease& operator=(Lease&&) = delete;

  // Ends the lease, of a copy that may never end: the buffer is not lent again, nor freed.
  void Abandon() {
    if (buffer_.data != nullptr) pool_->Abandon(std::exchange(buffer_, Buffer()));
  }
  // Null without a buffer.
  char* data() const { return buffer_.data; }
  bool is_pinned() const { return buffer_.is_pinned; }

 private:
  StagingPool* pool_;
  Buffer buffer_;
};

// The staging pools of an accelerator: one for each model and size of a buffer. A model's versions
// share it, so that a swap pins nothing and unpins nothing, both of which stop all runs.
//
// Thread: any number at once. A pool ends with the last version that has it.
class StagingPools {
 public:
  StagingPools(std::shared_ptr<DriverPins> pins, std::shared_ptr<base::ByteBudget> budget)
      : pins_(std::move(pins)), budget_(std::move(budget)) {}

  // Returns the pool of buffers of `bytes`, 1 or more, with its first buffers.
  std::shared_ptr<StagingPool> Get(const std::string& model, size_t bytes);

 private:
  const std::shared_ptr<DriverPins> pins_;
  const std::shared_ptr<base::ByteBudget> budget_;
  std::mutex mutex_;
  std::map<std::pair<std::string, size_t>, std::weak_ptr<StagingPool>> pools_;
};

}  // namespace millpond::pjrt
