#include "native/base/byte_budget.h"

#include <algorithm>

#include "native/base/sharded.h"

namespace millpond::base {

namespace {

// Threads take a portion of the bytes that a request takes, and keep at most this part of the limit
// in hand, all together.
constexpr int64_t kPortionBytesMax = int64_t{64} << 10U;
constexpr int64_t kPartsInHand = 64;

int64_t PortionOf(int64_t limit_bytes) {
  return std::min(kPortionBytesMax, limit_bytes / (kPartsInHand * CellCountForRequestThreads()));
}

}  // namespace

ByteBudget::ByteBudget(int64_t limit_bytes)
    : limit_bytes_(limit_bytes), in_use_(PortionOf(limit_bytes)) {}

bool ByteBudget::Take(int64_t bytes, Use use) {
  const int64_t reserve_bytes = static_cast<int64_t>(use) * kReserveBytes;
  const int64_t all_bytes =
      limit_bytes_ > kUnlimited - reserve_bytes ? kUnlimited : limit_bytes_ + reserve_bytes;
  if (in_use_.Take(bytes, all_bytes)) return true;
  refused_count_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

bool ByteBudget::Share::Resize(int64_t bytes) {
  if (budget_ == nullptr) return true;
  if (bytes > bytes_) {
    if (!budget_->Take(bytes - bytes_, use_)) return false;
  } else if (bytes < bytes_) {
    budget_->Return(bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

}  // namespace millpond::base
