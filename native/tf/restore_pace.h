#pragma once

#include <cstdint>

namespace millpond::tf {

// Keeps a restore at or below a number of bytes per second that may change at any moment. Pure: it
// gets the time and returns how long to wait, and the caller sleeps. One thread.
//
// Bytes that were read are a debt, which is paid off as time passes, at the present rate. Time
// without reading pays ahead, for at most kCreditNs. That makes up for sleeps that end late, but a
// restore that was held up does not catch up in a burst.
class RestorePace {
 public:
  static constexpr int64_t kCreditNs = 10'000'000;

  explicit RestorePace(int64_t now_ns) : paid_ns_(now_ns) {}

  // Returns how long to wait until more may be read; 0 if it may be read at once. If
  // `bytes_per_second_max` is 0, reading has no limit, and the debt is forgiven.
  int64_t WaitNs(int64_t now_ns, int64_t bytes_per_second_max);

  void Spend(int64_t bytes) { debt_bytes_ += static_cast<double>(bytes); }

 private:
  double debt_bytes_ = 0;  // negative if paid ahead
  int64_t paid_ns_;        // the instant up to which time has paid
};

// Returns the bytes per second of a restore of `total_bytes` while requests come. It is the pace
// that requests do not notice (docs/figures.md, "Swaps"). It is more if the restore would take
// longer than `target_ns`, and at most what a core reads beside others.
int64_t PaceBesideRequests(int64_t total_bytes, int64_t target_ns);

}  // namespace millpond::tf
