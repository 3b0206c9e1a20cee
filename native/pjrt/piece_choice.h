#pragma once

#include <algorithm>
#include <cstdint>

#include "native/pjrt/device_schedule.h"

namespace millpond::pjrt {

// The choice of the rows of one run on an accelerator that several models share. A run cannot be
// interrupted, so it should take DeviceSchedule::kPieceNs at most, or twice the shortest run if
// that is longer, because smaller runs would cost this model more than the others gain.
//
// Pure, on values.
class PieceChoice {
 public:
  // Adds a size, whose runs take `cost_ns`; 0: not known, so it may be tried. Sizes come in
  // ascending order, of which the first may always run. A size's time counts as no more a row than
  // that of the size below it, so that one slow run does not rule a size out.
  void Add(int64_t size, int64_t cost_ns) {
    if (is_over_) return;
    if (below_ns_ > 0) cost_ns = std::min(cost_ns, below_ns_ * size / rows_);
    if (below_ns_ == 0) cost_ns_max_ = std::max(DeviceSchedule::kPieceNs, 2 * cost_ns);
    is_over_ = cost_ns > cost_ns_max_;
    if (is_over_) return;
    rows_ = size;
    below_ns_ = std::max(cost_ns, below_ns_);
  }

  int64_t rows() const { return rows_; }

 private:
  int64_t rows_ = 0;
  int64_t below_ns_ = 0;  // the time of the size `rows_`, or of one below it
  int64_t cost_ns_max_ = 0;
  bool is_over_ = false;
};

}  // namespace millpond::pjrt
