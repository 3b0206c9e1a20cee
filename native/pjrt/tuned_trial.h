#pragma once

#include <cstdint>

namespace millpond::pjrt {

// While it lives, the device parts that this thread runs are trials of tuned programs: of the
// programs that were offered for `rows` rows (RowProgram::Offer), whatever rows a request has.
// Nothing else computes them in their place, so a trial that fails shows its error.
//
// One at a time on a thread.
class TunedTrial {
 public:
  explicit TunedTrial(int64_t rows) { Current() = rows; }
  ~TunedTrial() { Current() = kNone; }
  TunedTrial(const TunedTrial&) = delete;
  TunedTrial& operator=(const TunedTrial&) = delete;

  static constexpr int64_t kNone = 0;
  // The rows of the programs that this thread tries; kNone outside of a trial.
  static int64_t rows() { return Current(); }

 private:
  static int64_t& Current() {
    thread_local int64_t rows = kNone;
    return rows;
  }
};

}  // namespace millpond::pjrt
