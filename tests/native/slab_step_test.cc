#include "native/memory/slab_step.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace millpond::memory {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

IdleSlab IdleOf(size_t reserved_bytes, size_t resident_bytes) {
  IdleSlab idle;
  idle.slab = std::move(Slab::Reserve(reserved_bytes).value());
  idle.resident_bytes = resident_bytes;
  return idle;
}

TEST(ReturnSurplus, LastStepEndsAtTheSlabsEnd) {
  IdleSlab surplus = IdleOf(4 * kMiB, 4 * kMiB);
  auto step = ReturnSurplus::Next(surplus, 3 * kMiB);
  step->Record(&surplus);
  EXPECT_EQ(surplus.returned_bytes, 3 * kMiB);
  EXPECT_EQ(surplus.resident_bytes, kMiB);
  step = ReturnSurplus::Next(surplus, 3 * kMiB);
  step->Record(&surplus);
  EXPECT_EQ(surplus.returned_bytes, 4 * kMiB);
  EXPECT_EQ(surplus.resident_bytes, 0);
  EXPECT_FALSE(ReturnSurplus::Next(surplus, 3 * kMiB));
}

TEST(ReturnSurplus, SlabWithoutMemoryNeedsNoStep) {
  EXPECT_FALSE(ReturnSurplus::Next(IdleOf(4 * kMiB, 0), kMiB));
}

TEST(ReturnUnneeded, SlackOfASpareStays) {
  const IdleSlab spare = IdleOf(64 * kMiB, 4 * kMiB + kSpareSlackBytes);
  EXPECT_FALSE(ReturnUnneeded::Next(spare, 4 * kMiB, kMiB));
}

TEST(ReturnUnneeded, OnceBegunItGoesOnToTheSlabsEnd) {
  IdleSlab spare = IdleOf(32 * kMiB, 32 * kMiB);
  auto step = ReturnUnneeded::Next(spare, 4 * kMiB, 20 * kMiB);
  step->Record(&spare);
  EXPECT_EQ(spare.unneeded_end, 24 * kMiB);
  EXPECT_EQ(spare.resident_bytes, 12 * kMiB);
  step = ReturnUnneeded::Next(spare, 4 * kMiB, 20 * kMiB);
  ASSERT_TRUE(step);
  step->Record(&spare);
  EXPECT_EQ(spare.unneeded_end, 32 * kMiB);
  EXPECT_EQ(spare.resident_bytes, 4 * kMiB);
  EXPECT_FALSE(ReturnUnneeded::Next(spare, 4 * kMiB, 20 * kMiB));
}

TEST(PreFaultSpare, StopsAtTheNeedOfTheNextVersion) {
  IdleSlab spare = IdleOf(8 * kMiB, 0);
  auto step = PreFaultSpare::Next(spare, 3 * kMiB, 2 * kMiB);
  step->Record(&spare);
  step = PreFaultSpare::Next(spare, 3 * kMiB, 2 * kMiB);
  step->Perform();
  step->Record(&spare);
  EXPECT_EQ(spare.prefaulted_bytes, 3 * kMiB);
  EXPECT_EQ(spare.resident_bytes, 3 * kMiB);
  EXPECT_FALSE(PreFaultSpare::Next(spare, 3 * kMiB, 2 * kMiB));
}

TEST(PreFaultSpare, SlabThatAVersionFilledNeedsNoStep) {
  EXPECT_FALSE(PreFaultSpare::Next(IdleOf(8 * kMiB, 4 * kMiB), 3 * kMiB, kMiB));
}

TEST(ReserveSpare, RefusedReservationLeavesNoSlab) {
  ReserveSpare step("a", SIZE_MAX / 2);
  step.Perform();
  EXPECT_EQ(step.TakeSlab(), nullptr);
}

}  // namespace
}  // namespace millpond::memory
