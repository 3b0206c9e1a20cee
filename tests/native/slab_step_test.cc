#include "native/memory/slab_step.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace millpond::memory {
namespace {

using testing::kMiB;

SpareSlab SpareOf(size_t reserved_bytes, size_t resident_bytes, size_t goal_bytes) {
  SpareSlab spare;
  spare.slab = std::move(Slab::Reserve(reserved_bytes).value());
  spare.resident_bytes = resident_bytes;
  spare.goal_bytes = goal_bytes;
  return spare;
}

TEST(ReturnTail, ReturnsTheLastPagesAndAllBehindThem) {
  SpareSlab spare = SpareOf(16 * kMiB, 8 * kMiB, 8 * kMiB);
  spare.slab->PreFault(0, 8 * kMiB);
  spare.slab->PreFault(12 * kMiB, 2 * kMiB);
  auto step = ReturnTail::Next(spare, 2 * kMiB);
  step.Perform();
  step.Record(&spare);
  EXPECT_EQ(spare.resident_bytes, 6 * kMiB);
  EXPECT_EQ(spare.goal_bytes, 6 * kMiB);
  EXPECT_EQ(spare.slab->ResidentBytes(), 6 * kMiB);
}

TEST(ReturnTail, LastStepEndsAtTheSlabsStart) {
  SpareSlab spare = SpareOf(4 * kMiB, 2 * kMiB, 2 * kMiB);
  const auto step = ReturnTail::Next(spare, 4 * kMiB);
  step.Record(&spare);
  EXPECT_EQ(spare.resident_bytes, 0);
}

TEST(PreFaultSpare, StopsAtTheGoal) {
  SpareSlab spare = SpareOf(16 * kMiB, 0, 6 * kMiB);
  auto step = PreFaultSpare::Next(spare, 4 * kMiB);
  step->Perform();
  step->Record(&spare);
  step = PreFaultSpare::Next(spare, 4 * kMiB);
  step->Perform();
  step->Record(&spare);
  EXPECT_EQ(spare.resident_bytes, 6 * kMiB);
  EXPECT_EQ(spare.slab->ResidentBytes(), 6 * kMiB);
  EXPECT_FALSE(PreFaultSpare::Next(spare, 4 * kMiB));
}

TEST(PreFaultSpare, GoalThatWasGivenUpDuringAStepIsRaisedToTheStep) {
  SpareSlab spare = SpareOf(16 * kMiB, 0, 6 * kMiB);
  const auto step = PreFaultSpare::Next(spare, 4 * kMiB);
  spare.goal_bytes = 0;
  step->Record(&spare);
  EXPECT_EQ(spare.goal_bytes, 4 * kMiB);
}

TEST(PreFaultSpare, SlabThatAVersionFilledNeedsNoStep) {
  EXPECT_FALSE(PreFaultSpare::Next(SpareOf(8 * kMiB, 4 * kMiB, 4 * kMiB), 2 * kMiB));
}

TEST(PinSpare, PinsTheMemoryOfASparePieceByPiece) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  SpareSlab spare = SpareOf(32 * kMiB, 14 * kMiB, 16 * kMiB);
  EXPECT_FALSE(PinSpare::Next(spare, nullptr));
  for (const size_t pinned_bytes : {10 * kMiB, 14 * kMiB}) {
    auto step = PinSpare::Next(spare, pinner);
    step->Perform();
    step->Record(&spare);
    EXPECT_EQ(spare.slab->pinned_bytes(), pinned_bytes);
  }
  EXPECT_FALSE(PinSpare::Next(spare, pinner)) << "only what is resident";
}

TEST(PinSpare, ARefusalEndsTheAttempts) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  pinner->bytes_max = 0;
  SpareSlab spare = SpareOf(4 * kMiB, 4 * kMiB, 4 * kMiB);
  auto step = PinSpare::Next(spare, pinner);
  step->Perform();
  step->Record(&spare);
  EXPECT_FALSE(PinSpare::Next(spare, pinner));
}

TEST(ReserveSpare, RefusedReservationIsToldWithItsReason) {
  ReserveSpare step(SIZE_MAX / 2);
  step.Perform();
  const base::Status refused = step.TakeSlab().status();
  EXPECT_EQ(refused.code(), base::Code::kResourceExhausted);
  EXPECT_FALSE(refused.message().empty());
}

}  // namespace
}  // namespace millpond::memory
