#include "native/memory/slab.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace millpond::memory {
namespace {

using testing::kMiB;

std::unique_ptr<Slab> ReserveSlab(size_t bytes) { return std::move(Slab::Reserve(bytes).value()); }

TEST(Slab, StartsAndEndsAtWholeUnits) {
  for (const size_t bytes : {size_t{0}, size_t{1}, 2 * kMiB, 2 * kMiB + 1, 100 * kMiB}) {
    const auto slab = ReserveSlab(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slab->start()) % kSlabUnitBytes, 0);
    EXPECT_EQ(slab->reserved_bytes() % kSlabUnitBytes, 0);
    EXPECT_GE(slab->reserved_bytes(), bytes);
    EXPECT_LT(slab->reserved_bytes(), bytes + kSlabUnitBytes + 1);
  }
}

TEST(Slab, FreshOneTakesNoMemoryHoweverLarge) {
  EXPECT_EQ(ReserveSlab(1024 * kMiB)->ResidentBytes(), 0);
}

TEST(Slab, TooManyBytesAreRefusedWithTheirNumber) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX - 2 * kMiB}) {
    const auto slab = Slab::Reserve(bytes);
    ASSERT_FALSE(slab.ok());
    EXPECT_EQ(slab.status().code(), base::Code::kResourceExhausted);
    EXPECT_NE(slab.status().message().find(" bytes of addresses"), std::string::npos);
  }
}

TEST(Slab, PreFaultMakesTheRangeResidentAndKeepsItsContents) {
  const auto slab = ReserveSlab(16 * kMiB);
  std::memset(slab->start() + 4 * kMiB, 0x5a, 100);
  slab->PreFault(4 * kMiB, 4 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 4 * kMiB);
  EXPECT_EQ(slab->start()[4 * kMiB + 99], std::byte{0x5a});
  EXPECT_EQ(slab->start()[4 * kMiB + 100], std::byte{0});
}

TEST(Slab, RangesAreCutAtTheEnd) {
  const auto slab = ReserveSlab(4 * kMiB);
  slab->PreFault(2 * kMiB, SIZE_MAX);
  slab->PreFault(SIZE_MAX, 1);
  EXPECT_EQ(slab->ResidentBytes(), 2 * kMiB);
  slab->ReturnPages(3 * kMiB, SIZE_MAX);
  slab->ReturnPages(SIZE_MAX, 1);
  EXPECT_EQ(slab->ResidentBytes(), kMiB);
}

TEST(Slab, ResidentEndIsBehindTheLastPage) {
  const auto slab = ReserveSlab(64 * kMiB);
  EXPECT_EQ(slab->ResidentEnd(), 0);
  slab->PreFault(2 * kMiB, 2 * kMiB);
  slab->PreFault(30 * kMiB, 2 * kMiB);
  EXPECT_EQ(slab->ResidentEnd(), 32 * kMiB);
}

TEST(Slab, MovedTailKeepsItsContentsAndIsCutOff) {
  const auto from = ReserveSlab(64 * kMiB);
  const auto to = ReserveSlab(16 * kMiB);
  std::memset(from->start(), 1, 6 * kMiB);
  std::memset(from->start() + 4 * kMiB, 2, 4 * kMiB);
  ASSERT_EQ(from->MoveTail(8 * kMiB, 4 * kMiB, to.get(), 2 * kMiB), 4 * kMiB);
  EXPECT_EQ(from->reserved_bytes(), 4 * kMiB);
  EXPECT_EQ(from->ResidentBytes(), 4 * kMiB);
  EXPECT_EQ(from->start()[4 * kMiB - 1], std::byte{1});
  EXPECT_EQ(to->reserved_bytes(), 16 * kMiB);
  EXPECT_EQ(to->ResidentBytes(), 4 * kMiB);
  EXPECT_EQ(to->start()[2 * kMiB], std::byte{2});
  EXPECT_EQ(to->start()[6 * kMiB - 1], std::byte{2});
  to->start()[16 * kMiB - 1] = std::byte{3};
}

TEST(Slab, WholeMemoryMovedLeavesAnEmptySlab) {
  const auto from = ReserveSlab(8 * kMiB);
  const auto to = ReserveSlab(8 * kMiB);
  from->PreFault(0, 4 * kMiB);
  EXPECT_EQ(from->MoveTail(4 * kMiB, 4 * kMiB, to.get(), 0), 4 * kMiB);
  EXPECT_EQ(from->reserved_bytes(), 0);
  EXPECT_EQ(from->ResidentBytes(), 0);
}

// The system refuses an address that is not the start of a page before it touches anything.
size_t MoveInVain(Slab* to, size_t to_offset) {
  const auto from = ReserveSlab(4 * kMiB);
  return from->MoveTail(from->reserved_bytes() - 1, 2 * kMiB, to, to_offset);
}

// Maps memory that does not belong to the slab over a part of it.
std::byte* MapOver(std::byte* place, size_t bytes) {
  void* const mapped = mmap(place, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  EXPECT_EQ(mapped, place);
  std::memset(mapped, 5, bytes);
  return place;
}

bool IsMapped(std::byte* page) {
  unsigned char residency = 0;
  return mincore(page, kPageBytes, &residency) == 0;
}

TEST(Slab, RefusedMoveLeavesThePlaceAsItWas) {
  const auto to = ReserveSlab(8 * kMiB);
  std::memset(to->start(), 7, 8 * kMiB);
  EXPECT_EQ(MoveInVain(to.get(), 2 * kMiB), 0);
  EXPECT_EQ(to->reserved_bytes(), 8 * kMiB);
  EXPECT_EQ(to->start()[2 * kMiB], std::byte{7});
}

TEST(Slab, RefusedMoveFillsTheHoleThatTheSystemHasMade) {
  const auto to = ReserveSlab(8 * kMiB);
  ASSERT_EQ(munmap(to->start() + 2 * kMiB, 2 * kMiB), 0);
  EXPECT_EQ(MoveInVain(to.get(), 2 * kMiB), 0);
  ASSERT_EQ(to->reserved_bytes(), 8 * kMiB);
  std::memset(to->start(), 7, 8 * kMiB);
  // It counts as memory of the slab from then on.
  EXPECT_EQ(MoveInVain(to.get(), 2 * kMiB), 0);
  EXPECT_EQ(to->reserved_bytes(), 8 * kMiB);
}

TEST(Slab, EndsBeforeAUnitThatIsLostToOtherMemory) {
  for (const size_t stranger_kib : {2048, 4}) {
    SCOPED_TRACE(stranger_kib);
    auto to = ReserveSlab(8 * kMiB);
    std::byte* const start = to->start();
    const size_t stranger_bytes = stranger_kib << 10;
    std::byte* const stranger = MapOver(start + 4 * kMiB - stranger_bytes, stranger_bytes);
    EXPECT_EQ(MoveInVain(to.get(), 2 * kMiB), 0);
    EXPECT_EQ(to->reserved_bytes(), 2 * kMiB);
    EXPECT_FALSE(IsMapped(start + 4 * kMiB));
    EXPECT_TRUE(IsMapped(start));
    to.reset();
    EXPECT_FALSE(IsMapped(start));
    EXPECT_EQ(*stranger, std::byte{5});
    munmap(start + 2 * kMiB, 2 * kMiB);
  }
}

TEST(Slab, MovedMemoryCanBeSealedAndUnsealed) {
  const auto from = ReserveSlab(8 * kMiB);
  const auto to = ReserveSlab(8 * kMiB);
  from->PreFault(0, 4 * kMiB);
  from->MoveTail(4 * kMiB, 4 * kMiB, to.get(), 2 * kMiB);
  ASSERT_TRUE(to->Seal().ok());
  ASSERT_TRUE(to->Unseal().ok());
  const auto next = ReserveSlab(8 * kMiB);
  EXPECT_EQ(to->MoveTail(6 * kMiB, 6 * kMiB, next.get(), 0), 6 * kMiB);
}

TEST(Slab, ReturnedPagesAreGoneAndZero) {
  const auto slab = ReserveSlab(4 * kMiB);
  std::memset(slab->start(), 0x5a, 4 * kMiB);
  slab->ReturnPages(2 * kMiB, 2 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 2 * kMiB);
  EXPECT_EQ(slab->start()[2 * kMiB - 1], std::byte{0x5a});
  EXPECT_EQ(slab->start()[2 * kMiB], std::byte{0});
}

TEST(Slab, APageOfWhichOnlyAPartIsReturnedStays) {
  const auto slab = ReserveSlab(2 * kMiB);
  std::memset(slab->start(), 0x5a, 2 * kMiB);
  slab->ReturnPages(100, kPageBytes);
  EXPECT_EQ(slab->start()[100], std::byte{0x5a});
  EXPECT_EQ(slab->start()[kPageBytes], std::byte{0x5a});
}

// Returns the policy of the slab's memory, and its pages on node 0, as the kernel lists them.
std::string NodesOf(const Slab& slab) {
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(slab.start()) << " ";
  std::ifstream mappings("/proc/self/numa_maps");
  for (std::string line; std::getline(mappings, line);) {
    if (line.rfind(address.str(), 0) == 0) return line;
  }
  return "";
}

using testing::FakePagePinner;

// Pins the first `bytes` of a slab whose pages are resident.
void PinAll(Slab* slab, size_t bytes, const std::shared_ptr<FakePagePinner>& pinner) {
  slab->PreFault(0, bytes);
  while (slab->PinNext(bytes, pinner)) {
  }
  ASSERT_EQ(slab->pinned_bytes(), bytes);
}

TEST(Slab, IsPinnedInPiecesUpToTheGivenEnd) {
  const auto pinner = std::make_shared<FakePagePinner>();
  const auto slab = ReserveSlab(32 * kMiB);
  PinAll(slab.get(), 24 * kMiB, pinner);
  PinAll(slab.get(), 28 * kMiB, pinner);
  EXPECT_EQ(pinner->calls, (std::vector<size_t>{10 * kMiB, 10 * kMiB, 4 * kMiB, 4 * kMiB}));
}

TEST(Slab, UnpinsAllThatIsReturnedMovedOrUnmapped) {
  const auto pinner = std::make_shared<FakePagePinner>();
  {
    const auto from = ReserveSlab(32 * kMiB);
    const auto to = ReserveSlab(32 * kMiB);
    PinAll(from.get(), 24 * kMiB, pinner);
    PinAll(to.get(), 20 * kMiB, pinner);
    from->ReturnPages(23 * kMiB, SIZE_MAX);
    EXPECT_EQ(from->pinned_bytes(), 20 * kMiB) << "a piece is unpinned as a whole";
    pinner->ExpectAllResident();
    EXPECT_EQ(from->MoveTail(22 * kMiB, 6 * kMiB, to.get(), 14 * kMiB), 6 * kMiB);
    EXPECT_EQ(from->pinned_bytes(), 10 * kMiB);
    EXPECT_EQ(to->pinned_bytes(), 10 * kMiB);
    pinner->ExpectAllResident();
    from->LeaveMapped();
  }
  EXPECT_EQ(pinner->bytes(), 0);
}

// A device may read such pages for ever, and a driver may take what is mapped in their place for
// them.
TEST(Slab, PagesStayUntilTheyAreUnpinned) {
  const auto pinner = std::make_shared<FakePagePinner>();
  auto slab = ReserveSlab(32 * kMiB);
  PinAll(slab.get(), 20 * kMiB, pinner);
  slab->PreFault(0, 24 * kMiB);
  std::memset(slab->start(), 1, 24 * kMiB);
  pinner->unpins = false;
  const auto to = ReserveSlab(32 * kMiB);
  EXPECT_EQ(slab->MoveTail(24 * kMiB, 8 * kMiB, to.get(), 0), 0);
  EXPECT_EQ(slab->reserved_bytes(), 32 * kMiB);
  EXPECT_EQ(slab->MoveTail(24 * kMiB, 4 * kMiB, to.get(), 0), 4 * kMiB) << "none is among these";
  EXPECT_FALSE(slab->PinNext(20 * kMiB, pinner));
  slab->ReturnPages(18 * kMiB, SIZE_MAX);
  EXPECT_EQ(slab->start()[18 * kMiB - 1], std::byte{1});
  EXPECT_EQ(slab->start()[18 * kMiB], std::byte{0});
  pinner->ExpectAllResident();
  EXPECT_EQ(to->MoveTail(4 * kMiB, 2 * kMiB, slab.get(), 2 * kMiB), 0) << "their place is taken";
  pinner->UnpinLate();
  EXPECT_FALSE(slab->has_stuck_pins());
  pinner->unpins = true;
  PinAll(slab.get(), 20 * kMiB, pinner);
  EXPECT_EQ(to->MoveTail(4 * kMiB, 2 * kMiB, slab.get(), 2 * kMiB), 2 * kMiB);
}

// The driver may have pinned them, and pins them late, whoever waits.
TEST(Slab, PagesOfALatePinStayUntilItEnds) {
  const auto pinner = std::make_shared<FakePagePinner>();
  auto slab = ReserveSlab(32 * kMiB);
  std::byte* const start = slab->start();
  PinAll(slab.get(), 10 * kMiB, pinner);
  pinner->pins = false;
  EXPECT_FALSE(slab->PinNext(20 * kMiB, pinner));
  EXPECT_EQ(slab->pinned_bytes(), 10 * kMiB);
  EXPECT_TRUE(slab->has_stuck_pins());
  EXPECT_FALSE(slab->PinNext(20 * kMiB, pinner)) << "before the first one has ended";
  slab->ReturnPages(12 * kMiB, SIZE_MAX);
  const auto to = ReserveSlab(32 * kMiB);
  EXPECT_EQ(slab->MoveTail(24 * kMiB, 16 * kMiB, to.get(), 0), 0);
  pinner->ExpectAllResident();
  slab.reset();
  pinner->ExpectAllResident();
  EXPECT_TRUE(IsMapped(start + 20 * kMiB - kPageBytes));
  pinner->UnpinLate();
  EXPECT_FALSE(IsMapped(start + 20 * kMiB - kPageBytes));
}

TEST(Slab, PagesUnpinnedAfterItsEndAreUnmapped) {
  const auto pinner = std::make_shared<FakePagePinner>();
  auto slab = ReserveSlab(32 * kMiB);
  std::byte* const start = slab->start();
  PinAll(slab.get(), 20 * kMiB, pinner);
  pinner->unpins = false;
  slab.reset();
  pinner->ExpectAllResident();
  EXPECT_FALSE(IsMapped(start + 20 * kMiB)) << "nothing pinned is there";
  pinner->UnpinLate();
  for (const size_t place : {size_t{0}, 10 * kMiB, 20 * kMiB - kPageBytes}) {
    EXPECT_FALSE(IsMapped(start + place));
  }
}

TEST(Slab, ARefusedMoveLeavesNothingPinnedInItsPlace) {
  const auto pinner = std::make_shared<FakePagePinner>();
  const auto to = ReserveSlab(8 * kMiB);
  PinAll(to.get(), 8 * kMiB, pinner);
  EXPECT_EQ(MoveInVain(to.get(), 2 * kMiB), 0);
  EXPECT_EQ(to->pinned_bytes(), 0);
}

TEST(Slab, ASealedOneIsNotPinnedButStaysSo) {
  const auto pinner = std::make_shared<FakePagePinner>();
  const auto slab = ReserveSlab(8 * kMiB);
  PinAll(slab.get(), 4 * kMiB, pinner);
  ASSERT_TRUE(slab->Seal().ok());
  EXPECT_FALSE(slab->PinNext(8 * kMiB, pinner));
  EXPECT_EQ(slab->pinned_bytes(), 4 * kMiB);
  ASSERT_TRUE(slab->Unseal().ok());
  EXPECT_TRUE(slab->PinNext(8 * kMiB, pinner));
}

TEST(Slab, InterleavedOneAndItsMovedMemoryLieOnTheNodes) {
  if (!InterleaveSlabs({0})) GTEST_SKIP() << "the kernel refuses mbind";
  const auto first = ReserveSlab(8 * kMiB);
  const auto second = ReserveSlab(8 * kMiB);
  EXPECT_TRUE(InterleaveSlabs({}));
  first->PreFault(0, 8 * kMiB);
  EXPECT_NE(NodesOf(*first).find(" interleave:0 "), std::string::npos) << NodesOf(*first);
  EXPECT_NE(NodesOf(*first).find(" N0="), std::string::npos) << NodesOf(*first);
  ASSERT_EQ(first->MoveTail(8 * kMiB, 4 * kMiB, second.get(), 0), 4 * kMiB);
  EXPECT_NE(NodesOf(*second).find(" interleave:0 "), std::string::npos) << NodesOf(*second);
  EXPECT_EQ(NodesOf(*ReserveSlab(2 * kMiB)).find("interleave"), std::string::npos);
}

TEST(Slab, NodesThatTheMachineLacksAreRefused) {
  EXPECT_FALSE(InterleaveSlabs({1'000}));
  EXPECT_EQ(NodesOf(*ReserveSlab(2 * kMiB)).find("interleave"), std::string::npos);
}

TEST(SlabDeathTest, AWriteToASealedSlabEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto slab = ReserveSlab(2 * kMiB);
  ASSERT_TRUE(slab->Seal().ok());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(slab->start()) = std::byte{1}, "");
}

TEST(Slab, SealedOneIsReadAsBeforeAndPreFaultLeavesIt) {
  const auto slab = ReserveSlab(4 * kMiB);
  std::memset(slab->start(), 0x5a, kMiB);
  const size_t resident_bytes = slab->ResidentBytes();
  ASSERT_TRUE(slab->Seal().ok());
  EXPECT_TRUE(slab->is_sealed());
  slab->PreFault(0, 4 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), resident_bytes);
  EXPECT_EQ(slab->start()[kMiB - 1], std::byte{0x5a});
  ASSERT_TRUE(slab->Unseal().ok());
  EXPECT_FALSE(slab->is_sealed());
  slab->start()[0] = std::byte{1};
  EXPECT_EQ(slab->start()[0], std::byte{1});
}

}  // namespace
}  // namespace millpond::memory
