#pragma once

#include <cstdint>

namespace millpond::tf {

// Keeps a restore at or below a number of bytes per second that may change at any moment. Pure: it
// is told the time and says how long to wait; the caller sleeps. One thread.
//
// What was read is a debt, and time pays it off at the rate of that time. Time without reading pays
// ahead for kCreditNs at most, which makes up for sleeps that end late and for no more: a restore
// that was held up does not catch up in a burst.
class RestorePace {
 public:
  static constexpr int64_t kCreditNs = 10'000'000;

  explicit RestorePace(int64_t now_ns) : paid_ns_(now_ns) {}

  // How long until more may be read; 0: at once. `bytes_per_second_max` 0: without a limit, which
  // forgives the debt too.
  int64_t WaitNs(int64_t now_ns, int64_t bytes_per_second_max);

  void Spend(int64_t bytes) { debt_bytes_ += static_cast<double>(bytes); }

 private:
  double debt_bytes_ = 0;  // below 0: paid ahead
  int64_t paid_ns_;        // until when time has paid
};

}  // namespace millpond::tf
