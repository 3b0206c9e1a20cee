#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/pjrt/client.h"

namespace millpond::pjrt {

// Memory of this process from which an accelerator copies, and to which it does. It is pinned if
// the plugin can (PJRT_Client_DmaMap), so that the plugin copies without memory of its own between.
class StagingBuffer {
 public:
  // Takes `bytes` from `budget`. Returns null if it, or this machine, has no more.
  static std::unique_ptr<StagingBuffer> Make(std::shared_ptr<const Client> client,
                                             base::ByteBudget* budget, size_t bytes);
  ~StagingBuffer();
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  char* data() const { return data_; }

 private:
  StagingBuffer(std::shared_ptr<const Client> client, base::ByteBudget::Share share, char* data,
                size_t bytes);

  const std::shared_ptr<const Client> client_;
  const base::ByteBudget::Share share_;  // returned when the memory is free
  char* const data_;
  bool is_pinned_ = false;
};

// The staging buffers of one size of a program. A buffer is made for the first run that finds none
// free, and serves later runs until the end of the pool, which must outlive all leases.
//
// Thread: any number at once. Cost of a lease: a mutex, twice.
class StagingPool {
 public:
  // Runs of one size at once beyond this many, which is rare, use memory of their own.
  static constexpr size_t kBuffersMax = 4;

  class Lease;

  // `bytes` are those of a buffer, 1 or more.
  StagingPool(std::shared_ptr<const Client> client, base::ByteBudget* budget, size_t bytes)
      : client_(std::move(client)), budget_(budget), bytes_(bytes) {}

  // Lends a buffer. The lease has none if all are in use, or if the budget has no more bytes.
  Lease Take();

 private:
  void Return(std::unique_ptr<StagingBuffer> buffer);

  const std::shared_ptr<const Client> client_;
  base::ByteBudget* const budget_;
  const size_t bytes_;
  std::mutex mutex_;
  // Both guarded by the mutex.
  std::vector<std::unique_ptr<StagingBuffer>> free_;
  size_t made_count_ = 0;
};

// A buffer for one run, which the destructor gives back.
class StagingPool::Lease {
 public:
  Lease(StagingPool* pool, std::unique_ptr<StagingBuffer> buffer)
      : pool_(pool), buffer_(std::move(buffer)) {}
  ~Lease() {
    if (buffer_ != nullptr) pool_->Return(std::move(buffer_));
  }
  Lease(Lease&& other) noexcept = default;
  Lease& operator=(Lease&&) = delete;

  // Null without a buffer.
  char* data() const { return buffer_ == nullptr ? nullptr : buffer_->data(); }

 private:
  StagingPool* pool_;
  std::unique_ptr<StagingBuffer> buffer_;
};

}  // namespace millpond::pjrt
