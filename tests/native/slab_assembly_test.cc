#include "native/memory/slab_assembly.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace millpond::memory {
namespace {

using testing::kMiB;

SpareSlab SpareOf(size_t reserved_bytes, size_t resident_bytes) {
  SpareSlab spare;
  spare.slab = std::move(Slab::Reserve(reserved_bytes).value());
  spare.slab->PreFault(0, resident_bytes);
  spare.resident_bytes = resident_bytes;
  spare.goal_bytes = resident_bytes;
  return spare;
}

template <typename... Spares>
std::vector<SpareSlab> ListOf(Spares... spares) {
  std::vector<SpareSlab> list;
  (list.push_back(std::move(spares)), ...);
  return list;
}

TEST(SlabAssembly, WithoutSparesTheSlabIsFresh) {
  std::vector<SpareSlab> spares;
  SlabAssembly assembly(8 * kMiB, 4 * kMiB, &spares);
  const auto slab = std::move(assembly.Perform().value());
  EXPECT_EQ(slab->reserved_bytes(), 8 * kMiB);
  EXPECT_EQ(assembly.resident_bytes(), 0);
}

TEST(SlabAssembly, FittingSpareIsTheSlab) {
  auto spares = ListOf(SpareOf(8 * kMiB, 2 * kMiB), SpareOf(8 * kMiB, 6 * kMiB),
                       SpareOf(8 * kMiB, 4 * kMiB), SpareOf(6 * kMiB, 4 * kMiB));
  const Slab* const fitting = spares[2].slab.get();
  SlabAssembly assembly(8 * kMiB, 4 * kMiB, &spares);
  EXPECT_EQ(std::move(assembly.Perform().value()).get(), fitting);
  EXPECT_EQ(spares.size(), 3);
  EXPECT_TRUE(assembly.TakeRest().empty());
}

TEST(SlabAssembly, SpareThatCannotBeUnpinnedKeepsNoOtherFromGiving) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  auto spares = ListOf(SpareOf(8 * kMiB, 4 * kMiB), SpareOf(8 * kMiB, 6 * kMiB));
  spares[0].slab->PinNext(4 * kMiB, pinner);
  pinner->unpins = false;
  const auto other = std::move(Slab::Reserve(8 * kMiB).value());
  EXPECT_EQ(spares[0].slab->MoveTail(4 * kMiB, 4 * kMiB, other.get(), 0), 0);
  SlabAssembly assembly(16 * kMiB, 4 * kMiB, &spares);
  const auto slab = std::move(assembly.Perform().value());
  EXPECT_EQ(assembly.resident_bytes(), 4 * kMiB);
  EXPECT_EQ(spares.size(), 1U);
  pinner->UnpinLate();
}

TEST(SlabAssembly, SpareWithTooMuchMemoryGivesOnlyWhatIsWanted) {
  auto spares = ListOf(SpareOf(64 * kMiB, 32 * kMiB));
  SlabAssembly assembly(16 * kMiB, 4 * kMiB, &spares);
  const auto slab = std::move(assembly.Perform().value());
  EXPECT_EQ(slab->reserved_bytes(), 16 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 4 * kMiB);
  const auto rest = assembly.TakeRest();
  ASSERT_EQ(rest.size(), 1);
  EXPECT_EQ(rest[0].resident_bytes, 28 * kMiB);
  EXPECT_EQ(rest[0].goal_bytes, 28 * kMiB);
  EXPECT_EQ(rest[0].slab->reserved_bytes(), 28 * kMiB);
  EXPECT_EQ(rest[0].slab->ResidentBytes(), 28 * kMiB);
}

TEST(SlabAssembly, FittingSpareIsToppedUpFromOthers) {
  auto spares = ListOf(SpareOf(16 * kMiB, 4 * kMiB), SpareOf(4 * kMiB, 2 * kMiB),
                       SpareOf(8 * kMiB, 8 * kMiB));
  std::byte* const start = spares[0].slab->start();
  SlabAssembly assembly(16 * kMiB, 10 * kMiB, &spares);
  const auto slab = std::move(assembly.Perform().value());
  EXPECT_EQ(slab->start(), start);
  EXPECT_EQ(slab->ResidentBytes(), 10 * kMiB);
  ASSERT_EQ(spares.size(), 1);  // The smallest spare with enough memory gave it.
  EXPECT_EQ(spares[0].resident_bytes, 2 * kMiB);
  EXPECT_EQ(assembly.TakeRest().at(0).resident_bytes, 2 * kMiB);
}

TEST(SlabAssembly, AllSparesTogetherMayBeTooLittle) {
  auto spares = ListOf(SpareOf(4 * kMiB, 4 * kMiB), SpareOf(8 * kMiB, 8 * kMiB));
  SlabAssembly assembly(32 * kMiB, 16 * kMiB, &spares);
  EXPECT_EQ(std::move(assembly.Perform().value())->ResidentBytes(), 12 * kMiB);
  EXPECT_EQ(assembly.resident_bytes(), 12 * kMiB);
  EXPECT_TRUE(assembly.TakeRest().empty());
}

TEST(SlabAssembly, RefusedMoveMakesASlabWithLessMemory) {
  auto spares = ListOf(SpareOf(16 * kMiB, 4 * kMiB), SpareOf(4 * kMiB, 4 * kMiB));
  --spares[1].resident_bytes;  // The system refuses to move from the middle of a page.
  SlabAssembly assembly(16 * kMiB, 6 * kMiB, &spares);
  EXPECT_EQ(std::move(assembly.Perform().value())->ResidentBytes(), 4 * kMiB);
  EXPECT_EQ(assembly.resident_bytes(), 4 * kMiB);
}

TEST(SlabAssembly, SlabWhoseAddressesAreLostIsNotHandedOut) {
  auto spares = ListOf(SpareOf(16 * kMiB, 4 * kMiB), SpareOf(4 * kMiB, 4 * kMiB));
  --spares[1].resident_bytes;
  std::byte* const place = spares[0].slab->start() + 4 * kMiB;
  void* const stranger =
      mmap(place, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  ASSERT_EQ(stranger, place);
  *place = std::byte{5};
  {
    SlabAssembly assembly(16 * kMiB, 6 * kMiB, &spares);
    EXPECT_EQ(assembly.Perform().status().code(), base::Code::kResourceExhausted);
    const auto rest = assembly.TakeRest();
    ASSERT_EQ(rest.size(), 2);
    EXPECT_EQ(rest[1].slab->reserved_bytes(), 4 * kMiB);
    EXPECT_EQ(rest[1].resident_bytes, 4 * kMiB);
    EXPECT_EQ(rest[1].goal_bytes, 4 * kMiB);
  }
  EXPECT_EQ(*place, std::byte{5});
  munmap(stranger, 2 * kMiB);
}

TEST(SlabAssembly, RefusedReservationLosesNoMemory) {
  auto spares = ListOf(SpareOf(8 * kMiB, 8 * kMiB));
  SlabAssembly assembly(SIZE_MAX / 2, 4 * kMiB, &spares);
  EXPECT_EQ(assembly.Perform().status().code(), base::Code::kResourceExhausted);
  EXPECT_EQ(assembly.TakeRest().at(0).resident_bytes, 8 * kMiB);
}

}  // namespace
}  // namespace millpond::memory
