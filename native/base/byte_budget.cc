#include "native/base/byte_budget.h"

namespace millpond::base {

bool ByteBudget::Take(int64_t bytes, Use use) {
  const int64_t before = in_use_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const int64_t reserve_bytes = static_cast<int64_t>(use) * kReserveBytes;
  // Computed in this order, because the limit may be the largest number.
  if (bytes - reserve_bytes <= limit_bytes_ - before) return true;
  in_use_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
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
