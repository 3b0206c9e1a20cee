#include "native/metrics/span_buffer.h"

#include <utility>

namespace millpond::metrics {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;
constexpr int kCountBits = 32;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;

}  // namespace

SpanBuffer::SpanBuffer(Limits limits)
    : limits_(limits), mask_(limits.capacity - 1), slots_(new Slot[limits.capacity]) {
  for (size_t i = 0; i < limits_.capacity; ++i) {
    slots_[i].turn.store(i, std::memory_order_relaxed);
  }
}

bool SpanBuffer::Admit(int64_t now_ns) {
  const uint64_t second = static_cast<uint64_t>(now_ns) / kNsPerSecond;
  uint64_t seen = second_and_count_.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t count = seen >> kCountBits == second ? seen & kCountMask : 0;
    if (count >= static_cast<uint64_t>(limits_.per_second_max)) {
      over_rate_count_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    const uint64_t next = (second << kCountBits) | (count + 1);
    if (second_and_count_.compare_exchange_weak(seen, next, std::memory_order_relaxed)) return true;
  }
}

void SpanBuffer::Put(RequestSpan span) {
  size_t position = put_position_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[position & mask_];
    const size_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn == position) {
      if (!put_position_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        continue;
      }
      slot.span = std::move(span);
      slot.turn.store(position + 1, std::memory_order_release);
      return;
    }
    if (turn < position) {
      // The span of the last round has not been taken yet.
      full_count_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    position = put_position_.load(std::memory_order_relaxed);
  }
}

std::vector<RequestSpan> SpanBuffer::Take(size_t count_max) {
  std::vector<RequestSpan> spans;
  while (spans.size() < count_max) {
    Slot& slot = slots_[take_position_ & mask_];
    if (slot.turn.load(std::memory_order_acquire) != take_position_ + 1) break;
    spans.push_back(std::exchange(slot.span, {}));
    slot.turn.store(take_position_ + limits_.capacity, std::memory_order_release);
    ++take_position_;
  }
  return spans;
}

SpanBuffer::DroppedCounts SpanBuffer::dropped() const {
  return {over_rate_count_.load(std::memory_order_relaxed),
          full_count_.load(std::memory_order_relaxed)};
}

}  // namespace millpond::metrics
