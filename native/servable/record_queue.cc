#include "native/servable/record_queue.h"

#include <algorithm>
#include <new>

#include "native/base/bit_width.h"

namespace millpond::servable {
namespace {

constexpr size_t kCapacityMin = 1024;

size_t CapacityOf(size_t bytes_max) {
  return size_t{1} << base::BitWidth(std::max(bytes_max, kCapacityMin) - 1);
}

uint64_t* AllocateZeros(size_t bytes) {
  void* const zeros = std::calloc(bytes, 1);
  if (zeros == nullptr) throw std::bad_alloc();
  return static_cast<uint64_t*>(zeros);
}

}  // namespace

RecordQueue::RecordQueue(size_t bytes_max)
    : capacity_(CapacityOf(bytes_max)), ring_(AllocateZeros(capacity_)) {}

char* RecordQueue::Begin(size_t bytes) {
  if (bytes > record_bytes_max()) return nullptr;
  const size_t entry_bytes = EntryBytes(bytes);
  uint64_t end = end_.load(std::memory_order_relaxed);
  while (true) {
    // A record is in one piece, so padding fills the rest of the ring if the record does not fit.
    const size_t left = capacity_ - (end & (capacity_ - 1));
    const size_t padding = left < entry_bytes ? left : 0;
    const uint64_t begin = begin_.load(std::memory_order_acquire);
    // A difference below 0 comes from an `end` that is older than `begin`; the swap below renews
    // it.
    const auto used = static_cast<int64_t>(end - begin);
    if (used >= 0 && used + padding + entry_bytes > capacity_) return nullptr;
    if (!end_.compare_exchange_weak(end, end + padding + entry_bytes, std::memory_order_relaxed)) {
      continue;
    }
    if (padding > 0) {
      const uint64_t mark = (padding - sizeof(uint64_t)) << kKindBits | kPadding;
      __atomic_store_n(HeadAt(end), mark, __ATOMIC_RELEASE);
    }
    return BodyOf(HeadAt(end + padding));
  }
}

void RecordQueue::Commit(char* record, size_t bytes) {
  uint64_t* const head = reinterpret_cast<uint64_t*>(record) - 1;
  __atomic_store_n(head, bytes << kKindBits | kRecord, __ATOMIC_RELEASE);
}

uint64_t RecordQueue::FindEnd(size_t bytes_max) const {
  const uint64_t first = begin_.load(std::memory_order_relaxed);
  const uint64_t last = end_.load(std::memory_order_relaxed);
  uint64_t end = first;
  // Padding does not count: else it could be all that is found, and the queue would seem empty.
  for (size_t found_bytes = 0; end < last && found_bytes < bytes_max;) {
    const uint64_t mark = __atomic_load_n(HeadAt(end), __ATOMIC_ACQUIRE);
    if (mark == kIncomplete) break;
    const size_t entry_bytes = EntryBytes(mark >> kKindBits);
    if ((mark & kRecord) != 0) found_bytes += entry_bytes;
    end += entry_bytes;
  }
  return end;
}

void RecordQueue::RemoveUpTo(uint64_t end) {
  for (uint64_t begin = begin_.load(std::memory_order_relaxed); begin < end;) {
    uint64_t* const head = HeadAt(begin);
    const size_t entry_bytes = EntryBytes(*head >> kKindBits);
    std::memset(head, 0, entry_bytes);
    begin += entry_bytes;
    begin_.store(begin, std::memory_order_release);
  }
}

size_t RecordQueue::used_bytes() const {
  const uint64_t begin = begin_.load(std::memory_order_acquire);
  return end_.load(std::memory_order_acquire) - begin;
}

}  // namespace millpond::servable
