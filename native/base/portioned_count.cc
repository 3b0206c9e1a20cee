#include "native/base/portioned_count.h"

#include <algorithm>

namespace millpond::base {

PortionedCount::PortionedCount(int64_t portion)
    : portion_(portion), hands_(portion > 0 ? CellCountForRequestThreads() : 1) {}

// A hand may hold what was taken under a higher limit, so it is used only below this one.
bool PortionedCount::Take(int64_t count, int64_t limit) {
  if (count > portion_) {
    if (TakeCommon(count, limit)) return true;
  } else {
    Hand& mine = hands_.Mine();
    if (common_.load(std::memory_order_relaxed) <= limit && TakeFrom(&mine, count)) return true;
    if (TakeCommon(count + portion_, limit)) {
      mine.count.fetch_add(portion_, std::memory_order_relaxed);
      return true;
    }
    if (TakeCommon(count, limit)) return true;
  }
  if (portion_ == 0) return false;
  EmptyHands();
  return TakeCommon(count, limit);
}

void PortionedCount::Return(int64_t count) {
  if (count > portion_) {
    common_.fetch_sub(count, std::memory_order_relaxed);
    return;
  }
  Hand& mine = hands_.Mine();
  const int64_t held = mine.count.fetch_add(count, std::memory_order_relaxed) + count;
  if (held <= 2 * portion_) return;
  if (TakeFrom(&mine, held - portion_)) {
    common_.fetch_sub(held - portion_, std::memory_order_relaxed);
  }
}

int64_t PortionedCount::taken() const {
  int64_t held = 0;
  for (const Hand& hand : hands_) held += hand.count.load(std::memory_order_relaxed);
  return std::max<int64_t>(common_.load(std::memory_order_relaxed) - held, 0);
}

bool PortionedCount::TakeFrom(Hand* hand, int64_t count) {
  int64_t held = hand->count.load(std::memory_order_relaxed);
  while (held >= count) {
    if (hand->count.compare_exchange_weak(held, held - count, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool PortionedCount::TakeCommon(int64_t count, int64_t limit) {
  const int64_t before = common_.fetch_add(count, std::memory_order_relaxed);
  // Computed in this order, because the limit may be the largest number.
  if (count <= limit - before) return true;
  common_.fetch_sub(count, std::memory_order_relaxed);
  return false;
}

void PortionedCount::EmptyHands() {
  for (Hand& hand : hands_) {
    if (hand.count.load(std::memory_order_relaxed) == 0) continue;
    const int64_t held = hand.count.exchange(0, std::memory_order_relaxed);
    common_.fetch_sub(held, std::memory_order_relaxed);
  }
}

}  // namespace millpond::base
