#include "native/tf/restore_pace.h"

#include <algorithm>
#include <cmath>

namespace millpond::tf {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kGentleBytesPerSecond = 250e6;
constexpr double kFastestBytesPerSecond = 4e9;

}  // namespace

int64_t RestorePace::WaitNs(int64_t now_ns, int64_t bytes_per_second_max) {
  const auto passed_ns = static_cast<double>(std::max<int64_t>(0, now_ns - paid_ns_));
  paid_ns_ = std::max(paid_ns_, now_ns);
  if (bytes_per_second_max <= 0) {
    debt_bytes_ = 0;
    return 0;
  }
  const double bytes_per_ns = static_cast<double>(bytes_per_second_max) / kNsPerSecond;
  debt_bytes_ = std::max(debt_bytes_ - passed_ns * bytes_per_ns,
                         -static_cast<double>(kCreditNs) * bytes_per_ns);
  if (debt_bytes_ <= 0) return 0;
  return static_cast<int64_t>(std::ceil(debt_bytes_ / bytes_per_ns));
}

int64_t PaceBesideRequests(int64_t total_bytes, int64_t target_ns) {
  const double wanted =
      static_cast<double>(total_bytes) / static_cast<double>(target_ns) * kNsPerSecond;
  return static_cast<int64_t>(std::clamp(wanted, kGentleBytesPerSecond, kFastestBytesPerSecond));
}

}  // namespace millpond::tf
