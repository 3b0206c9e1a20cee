#include "native/metrics/request_recorder.h"

#include <gtest/gtest.h>

namespace millpond::metrics {
namespace {

TEST(PhaseWatch, DividesTheTotalIntoThePhasesThatWereReached) {
  PhaseWatch watch(/*received_ns=*/100);
  watch.Enter(Phase::kDecode, 103);
  watch.Enter(Phase::kRun, 110);
  watch.Enter(Phase::kEncode, 200);
  EXPECT_EQ(watch.End(250).ns,
            (std::array<int64_t, kPhaseCount>{3, 7, PhaseTimes::kNone, 90, 50, 150}));
}

TEST(PhaseWatch, ARequestThatFailsHasThePhasesUpToThatOne) {
  PhaseWatch watch(/*received_ns=*/100);
  watch.Enter(Phase::kDecode, 103);
  const PhaseTimes& times = watch.End(130);
  EXPECT_EQ(times[Phase::kDecode], 27);
  EXPECT_EQ(times[Phase::kRun], PhaseTimes::kNone);
  EXPECT_EQ(times[Phase::kEncode], PhaseTimes::kNone);
  EXPECT_EQ(times[Phase::kTotal], 30);
}

TEST(PhaseWatch, ARunIsBetweenTheTwoPartsOfItsBatch) {
  PhaseWatch watch(/*received_ns=*/0);
  watch.Enter(Phase::kDecode, 1);
  watch.Enter(Phase::kRun, 3);
  watch.Enter(Phase::kBatch, 4);
  watch.Enter(Phase::kRun, 10);
  watch.Enter(Phase::kBatch, 30);
  watch.Enter(Phase::kEncode, 35);
  const PhaseTimes& times = watch.End(37);
  EXPECT_EQ(times.ns, (std::array<int64_t, kPhaseCount>{1, 2, 11, 21, 2, 37}));
}

TEST(PhaseWatch, APhaseMayBeLeftOut) {
  PhaseWatch watch(/*received_ns=*/0);
  watch.Enter(Phase::kRun, 4);
  const PhaseTimes& times = watch.End(9);
  EXPECT_EQ(times[Phase::kQueue], 4);
  EXPECT_EQ(times[Phase::kDecode], PhaseTimes::kNone);
  EXPECT_EQ(times[Phase::kRun], 5);
}

}  // namespace
}  // namespace millpond::metrics
