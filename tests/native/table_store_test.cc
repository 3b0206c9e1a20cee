// Holds the store of tables to its promises: by single cases, and over random sequences of loads
// that end well, fail at any step, and are unloaded in any order.
#include "native/memory/table_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/memory/copy_ahead.h"
#include "native/memory/slab_keeper.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;

constexpr size_t kRowBytes = 64;
constexpr size_t kTableBytes = 1 * kMiB;
constexpr size_t kRowCount = kTableBytes / kRowBytes;
constexpr size_t kPieceBytes = CopyAhead::kPieceBytes;

std::shared_ptr<TableStore> NewStore(const std::shared_ptr<SlabPool>& pool, int kept_count = 1) {
  return std::make_shared<TableStore>(pool, kept_count);
}

// The table of a file, in which neighbouring rows differ. It is written and compared as one block,
// because the sanitizers take their time for each call.
const std::vector<std::byte>& TableOfFile(const std::string& contents, size_t bytes = kTableBytes) {
  thread_local std::map<std::pair<char, size_t>, std::vector<std::byte>> tables;
  std::vector<std::byte>& table = tables[{contents.back(), bytes}];
  for (size_t row = table.size() / kRowBytes; row < bytes / kRowBytes; ++row) {
    table.insert(table.end(), kRowBytes, static_cast<std::byte>(contents.back() + row % 101));
  }
  return table;
}

void WriteRow(std::byte* table, size_t row, std::byte value) {
  std::memset(table + row * kRowBytes, static_cast<int>(value), kRowBytes);
}

// A version with one table: what it should hold, and what holds it.
struct Version {
  std::vector<std::byte> expected;
  const std::byte* data = nullptr;
  std::shared_ptr<const TableHold> hold;
};

// The rows of a file that lie at `data`.
Version RowsOfFile(const std::string& contents, const std::byte* data, size_t bytes = kTableBytes) {
  Version version;
  version.expected = TableOfFile(contents, bytes);
  version.data = data;
  return version;
}

// A load of a version with one table.
class Load {
 public:
  Load(TableStore* store, const std::string& owner, const std::string& contents, bool is_written)
      : Load(store, {owner, contents, kTableBytes, is_written}, nullptr) {}
  // A table of a load that wants several ones.
  Load(TableStore* store, TableWish wish, TableStore::LoadPermit permit)
      : wish_(std::move(wish)),
        permit_(permit != nullptr ? std::move(permit) : store->BeginLoad(wish_.owner, {wish_})),
        claim_(std::move(store->Claim(wish_, kRowBytes, permit_).value())) {}

  TableClaim& claim() { return *claim_; }

  // Restores the first `row_count` rows.
  void Restore(size_t row_count = SIZE_MAX) {
    row_count = std::min(row_count, RowCount());
    if (claim_->use() == TableUse::kUndo) {
      claim_->UndoRows(row_count);
    } else if (claim_->use() != TableUse::kShare) {
      claim_->BeginOverwrite();
      if (claim_->copies()) return Copy(row_count);
      std::memcpy(claim_->data(), TableOfFile(wish_.contents, wish_.bytes).data(),
                  row_count * kRowBytes);
      if (row_count == RowCount()) claim_->EndOverwrite();
    }
  }
  // Replaces rows, as the scatter of an init op does.
  void Scatter(const std::vector<int64_t>& ids, std::byte value) {
    claim_->LogRows(ids.data(), ids.size());
    for (const int64_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= RowCount()) continue;
      WriteRow(claim_->data(), static_cast<size_t>(id), value);
      changed_.emplace_back(static_cast<size_t>(id), value);
    }
  }
  Version Finish() {
    claim_->Commit();
    Version version = RowsOfFile(wish_.contents, claim_->data(), wish_.bytes);
    for (const auto& [row, value] : changed_) WriteRow(version.expected.data(), row, value);
    version.hold = claim_->hold();
    claim_.reset();
    permit_.reset();
    return version;
  }

 private:
  size_t RowCount() const { return wish_.bytes / kRowBytes; }
  // In two pieces.
  void Copy(size_t row_count) {
    const size_t half = row_count / 2 * kRowBytes;
    claim_->CopyNext(half);
    claim_->CopyNext(row_count * kRowBytes - half);
    if (row_count < RowCount()) return;
    claim_->UndoRows(1);
    claim_->UndoRows(row_count);
    claim_->EndOverwrite();
  }

  const TableWish wish_;
  TableStore::LoadPermit permit_;
  std::unique_ptr<TableClaim> claim_;
  std::vector<std::pair<size_t, std::byte>> changed_;
};

void ExpectIntact(const Version& version) {
  const std::byte* const expected = version.expected.data();
  const size_t bytes = version.expected.size();
  if (std::memcmp(version.data, expected, bytes) == 0) return;
  const auto wrong = std::mismatch(version.data, version.data + bytes, expected);
  FAIL() << "row " << (wrong.first - version.data) / static_cast<std::ptrdiff_t>(kRowBytes);
}

VersionTables TablesOf(int count) {
  VersionTables tables;
  for (int i = 0; i < count; ++i) tables.Add(kTableBytes, kRowBytes, /*is_written=*/true);
  return tables;
}

class TableStoreTest : public ::testing::Test {
 protected:
  TableStoreTest() { store_->Expect("m", TablesOf(1)); }

  Load NewLoad(const std::string& contents, bool is_written = true) {
    return {store_.get(), "m", contents, is_written};
  }
  Version Loaded(const std::string& contents, const std::vector<int64_t>& ids = {},
                 std::byte value = std::byte{7}) {
    Load load = NewLoad(contents);
    load.Restore();
    load.Scatter(ids, value);
    return load.Finish();
  }
  Version LoadedAndSealed(const std::string& contents) {
    Load load = NewLoad(contents);
    load.Restore();
    EXPECT_TRUE(store_->Seal({&load.claim()}).ok());
    return load.Finish();
  }

  std::unique_ptr<TableClaim> ClaimAlone(const TableWish& wish, size_t row_bytes) const {
    return std::move(store_->Claim(wish, row_bytes, store_->BeginLoad(wish.owner, {wish})).value());
  }
  // Lets the pool keep the memory that is needed for the next version of `tables`.
  void KeepMemory(const VersionTables& tables = TablesOf(1)) const {
    store_->Expect("m", tables);
    pool_->Refill(SIZE_MAX);
    while (pool_->KeepStep()) {
    }
  }
  // A table of many units of a slab.
  static constexpr size_t kBigBytes = 16 * kMiB;
  static VersionTables BigTable() {
    VersionTables tables;
    tables.Add(kBigBytes, kRowBytes, /*is_written=*/true);
    return tables;
  }
  // Has a load read so many rows of such a table, and fail. Returns the model's free bytes.
  size_t LoadBig(size_t row_count, const std::string& contents = "a") const {
    Load(store_.get(), {"m", contents, kBigBytes, true}, nullptr).Restore(row_count);
    return store_->FreeBytes("m");
  }
  void CopyAllAhead() {
    while (copy_ahead_->Step()) {
    }
  }

  const std::shared_ptr<SlabPool> pool_ = std::make_shared<SlabPool>(SlabPoolOptions());
  const std::shared_ptr<TableStore> store_ = NewStore(pool_);
  std::optional<CopyAhead> copy_ahead_{std::in_place, store_};
};

// The slab of a table has whole units.
constexpr auto kTableSlabBytes = static_cast<int64_t>(RoundUp(kTableBytes, kSlabUnitBytes));

TEST_F(TableStoreTest, ATableIsCopiedAheadIntoMemoryThatIsKept) {
  const Version first = Loaded("a", {1, 2, 3});
  EXPECT_FALSE(copy_ahead_->Step());
  KeepMemory();
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, kTableSlabBytes);
  CopyAllAhead();
  EXPECT_EQ(store_->Statistics().standby_count, 1);
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
  KeepMemory();
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
  Load second = NewLoad("a");
  EXPECT_EQ(second.claim().use(), TableUse::kUndo);
  EXPECT_EQ(second.claim().changed_row_count(), 0);
  EXPECT_EQ(second.claim().resident_bytes(), kTableBytes);
  second.Restore();
  second.Scatter({3, 4}, std::byte{9});
  ExpectIntact(second.Finish());
  ExpectIntact(first);
}

TEST_F(TableStoreTest, AllTablesOfAVersionAreCopiedAhead) {
  const Version first = Loaded("a");
  const Version second = Loaded("b");
  KeepMemory(TablesOf(2));
  CopyAllAhead();
  EXPECT_EQ(store_->Statistics().standby_count, 2);
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
  for (const char* const contents : {"a", "b"}) {
    EXPECT_EQ(NewLoad(contents).claim().use(), TableUse::kUndo) << contents;
  }
}

// After no step, in the middle of the bytes, and before the last row is undone.
TEST_F(TableStoreTest, ALoadGoesOnWithTheCopyThatIsUnderWay) {
  const Version first = Loaded("a", {1, 5});
  for (const size_t piece_count : {size_t{1}, size_t{3}, kTableBytes / kPieceBytes}) {
    KeepMemory();
    for (size_t i = 0; i < piece_count; ++i) ASSERT_TRUE(copy_ahead_->Step());
    EXPECT_EQ(store_->Statistics().copying_bytes, kTableBytes);
    {
      Load second = NewLoad("a");
      EXPECT_TRUE(second.claim().copies());
      EXPECT_EQ(second.claim().bytes_to_fill(), kTableBytes - piece_count * kPieceBytes);
      EXPECT_EQ(second.claim().resident_bytes(), kTableBytes);
      EXPECT_FALSE(copy_ahead_->Step()) << "beside a load";
      EXPECT_EQ(store_->Statistics().copying_bytes, 0);
      EXPECT_EQ(store_->Statistics().held_count, 2);
      second.Restore();
      second.Scatter({5, 6}, std::byte{9});
      ExpectIntact(second.Finish());
    }
    ExpectIntact(first);
    EXPECT_EQ(pool_->Statistics().in_use_count, 2);
    EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
    store_->Forget("m");
  }
}

TEST_F(TableStoreTest, AFailedLoadLeavesItsCopyToTheNextOneAhead) {
  const Version first = Loaded("a", {1});
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  NewLoad("a").Restore(kRowCount / 2);
  EXPECT_EQ(store_->Statistics().dirty_count, 1);
  CopyAllAhead();
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  EXPECT_EQ(pool_->Statistics().in_use_count, 2);
  ExpectIntact(Loaded("a", {3}));
}

TEST_F(TableStoreTest, ALoadOfAnotherFileEndsTheCopyAhead) {
  const Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  Load second = NewLoad("b");
  EXPECT_EQ(store_->Statistics().copying_bytes, 0);
  EXPECT_EQ(second.claim().use(), TableUse::kFresh);
  EXPECT_EQ(second.claim().reason(), ReadReason::kOtherFile);
  EXPECT_EQ(second.claim().resident_bytes(), kTableBytes);
  EXPECT_EQ(pool_->Statistics().in_use_count, 2);
  second.Restore();
  ExpectIntact(second.Finish());
  ExpectIntact(first);
}

// It takes the memory as its arena.
TEST_F(TableStoreTest, ALoadWithoutTablesFindsTheMemoryInThePool) {
  const Version first = Loaded("a");
  for (const bool is_complete : {false, true}) {
    KeepMemory();
    ASSERT_TRUE(copy_ahead_->Step());
    if (is_complete) CopyAllAhead();
    EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
    const auto permit = store_->BeginLoad("m", {});
    while (pool_->KeepStep()) {
    }
    EXPECT_EQ(pool_->Statistics().spare_resident_bytes, kTableSlabBytes);
    EXPECT_FALSE(copy_ahead_->Step());
    EXPECT_EQ(pool_->Statistics().in_use_count, 1);
  }
  CopyAllAhead();
  EXPECT_EQ(store_->Statistics().standby_count, 1);
}

// The keeper is told when nothing loads any more.
TEST_F(TableStoreTest, ACopyAheadWaitsForTheLoadsOfAllModels) {
  const Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  TableStore::LoadPermit second = store_->BeginLoad("n", {});
  TableStore::LoadPermit third = store_->BeginLoad("o", {});
  EXPECT_FALSE(copy_ahead_->Step());
  second.reset();
  EXPECT_FALSE(copy_ahead_->Step());
  EXPECT_EQ(store_->Statistics().copying_bytes, kTableBytes);
  int told_count = 0;
  pool_->NotifyOfWork([&] { ++told_count; });
  third.reset();
  pool_->NotifyOfWork(nullptr);
  EXPECT_GT(told_count, 0);
  CopyAllAhead();
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kUndo);
}

// As if the keeper had lost its core there. Its step may be the first or a later one.
TEST_F(TableStoreTest, ALoadGoesOnWithoutACopyInTheMiddleOfAStep) {
  const Version first = Loaded("a", {1, 5});
  for (const char* const contents : {"a", "b"}) {
    for (const int step_count : {0, 2}) {
      KeepMemory();
      for (int i = 0; i < step_count; ++i) ASSERT_TRUE(copy_ahead_->Step());
      ASSERT_TRUE(copy_ahead_->BeginStep());
      Load second = NewLoad(contents);
      EXPECT_EQ(second.claim().use(), TableUse::kFresh);
      EXPECT_EQ(second.claim().bytes_to_fill(), kTableBytes);
      second.Restore();
      copy_ahead_->PerformStep();
      copy_ahead_->EndStep();
      EXPECT_EQ(store_->Statistics().copying_bytes, 0);
      EXPECT_EQ(pool_->Statistics().in_use_count, 2);
      second.Scatter({5, 6}, std::byte{9});
      ExpectIntact(second.Finish());
      ExpectIntact(first);
      store_->Forget("m");
    }
  }
}

TEST_F(TableStoreTest, AVersionThatIsUnloadedInAStepIsNotWritten) {
  Version first = Loaded("a", {1, 5});
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->BeginStep());
  first = {};
  {
    Load second = NewLoad("a");
    EXPECT_TRUE(second.claim().copies());
    second.Restore();
    copy_ahead_->PerformStep();
    copy_ahead_->EndStep();
    ExpectIntact(second.Finish());
  }
  EXPECT_EQ(store_->Statistics().copying_bytes, 0);
  EXPECT_EQ(store_->Statistics().held_count, 0);
  EXPECT_EQ(store_->Statistics().standby_bytes, kTableBytes);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
}

// A load that is checked against a limit would be refused for memory that it gets itself.
TEST_F(TableStoreTest, ACopyUnderWayIsNeitherHeldNorOnStandby) {
  const Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  EXPECT_EQ(store_->Statistics().held_bytes, kTableBytes);
  EXPECT_EQ(store_->Statistics().standby_bytes, 0);
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  EXPECT_EQ(store_->Statistics().copying_bytes, kTableBytes);
}

TEST_F(TableStoreTest, ANewFileIsCopiedAheadOverTheFormerOne) {
  for (const bool is_sealed : {false, true}) {
    Version first = is_sealed ? LoadedAndSealed("a") : Loaded("a", {1});
    const Version second = is_sealed ? LoadedAndSealed("b") : Loaded("b");
    store_->Expect("m", TablesOf(1));
    CopyAllAhead();
    EXPECT_EQ(store_->Statistics().standby_count, 0) << "the former one is held";
    first = {};
    CopyAllAhead();
    EXPECT_EQ(pool_->Statistics().in_use_count, 2);
    EXPECT_EQ(NewLoad("b").claim().use(), TableUse::kUndo);
    ExpectIntact(second);
    ExpectIntact(Loaded("b", {4}));
    store_->Forget("m");
  }
}

TEST_F(TableStoreTest, AGrownTableIsCopiedAheadToo) {
  Version first = Loaded("a");
  const TableWish grown{"m", "b", 3 * kTableBytes, /*is_written=*/true};
  std::unique_ptr<TableClaim> claim;
  {
    const auto permit = store_->BeginLoad("m", {grown});
    claim = std::move(store_->Claim(grown, kRowBytes, permit).value());
    claim->BeginOverwrite();
    std::memset(claim->data(), 1, grown.bytes);
    claim->EndOverwrite();
    claim->Commit();
  }
  VersionTables tables;
  tables.Add(grown.bytes, kRowBytes, /*is_written=*/true);
  store_->Expect("m", tables);
  first = {};
  EXPECT_EQ(store_->Statistics().standby_bytes, 0);
  KeepMemory(tables);
  CopyAllAhead();
  EXPECT_EQ(store_->Statistics().standby_bytes, grown.bytes);
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
}

// Under the policy `resource`: no version is there meanwhile, or after a failed load.
TEST_F(TableStoreTest, AllSizesOfAnUnloadedVersionStandBy) {
  const std::vector<TableWish> wishes = {{"m", "a", kTableBytes, /*is_written=*/true},
                                         {"m", "b", 3 * kTableBytes, /*is_written=*/true},
                                         {"m", "a", 5 * kTableBytes, /*is_written=*/false}};
  VersionTables tables;
  for (const TableWish& wish : wishes) tables.Add(wish.bytes, kRowBytes, wish.is_written);
  std::vector<size_t> order = {0, 1, 2};
  do {
    std::vector<Version> version;
    {
      const TableStore::LoadPermit permit = store_->BeginLoad("m", wishes);
      std::vector<Load> loads;
      for (const TableWish& wish : wishes) loads.emplace_back(store_.get(), wish, permit);
      for (Load& load : loads) load.Restore();
      store_->Expect("m", tables);
      for (Load& load : loads) version.push_back(load.Finish());
    }
    for (const size_t index : order) version[index] = {};
    EXPECT_EQ(store_->Statistics().standby_bytes, tables.bytes);
    for (int round = 0; round < 2; ++round) {
      const TableStore::LoadPermit permit = store_->BeginLoad("m", wishes);
      std::vector<Load> loads;
      for (const TableWish& wish : wishes) {
        loads.emplace_back(store_.get(), wish, permit);
        EXPECT_EQ(loads.back().claim().bytes_to_fill(), 0) << wish.bytes << ", round " << round;
      }
    }
    EXPECT_EQ(store_->Statistics().standby_bytes, tables.bytes);
  } while (std::next_permutation(order.begin(), order.end()));
}

// Its table is the copy then, and no more memory is kept.
TEST_F(TableStoreTest, AVersionThatIsUnloadedEndsItsCopyAhead) {
  Version first = Loaded("a", {1});
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  first = {};
  EXPECT_EQ(store_->Statistics().copying_bytes, 0);
  EXPECT_EQ(store_->Statistics().held_bytes, 0);
  EXPECT_EQ(store_->Statistics().standby_bytes, kTableBytes);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
  EXPECT_FALSE(copy_ahead_->Step());
  Load second = NewLoad("a");
  EXPECT_EQ(second.claim().use(), TableUse::kUndo);
  second.Restore();
  ExpectIntact(second.Finish());
}

// The table of another model may stand by, and then the copied one too.
TEST_F(TableStoreTest, NoMoreThanIsKeptStandsByBesideACopyAhead) {
  Version first = Loaded("a", {1});
  Load other(store_.get(), "n", "b", /*is_written=*/false);
  other.Restore();
  Version second = other.Finish();
  VersionTables tables;
  tables.Add(kTableBytes, kRowBytes, /*is_written=*/false);
  store_->Expect("n", tables);
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  second = {};
  EXPECT_EQ(store_->Statistics().standby_bytes, kTableBytes);
  first = {};
  EXPECT_EQ(store_->Statistics().standby_bytes, kTableBytes);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
}

TEST_F(TableStoreTest, AModelThatIsGoneEndsItsCopyAhead) {
  Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  store_->Forget("m");
  EXPECT_EQ(store_->Statistics().copying_bytes, 0);
  first = {};
  EXPECT_FALSE(copy_ahead_->Step());
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

// A load of another model has taken it since the choice.
TEST_F(TableStoreTest, ACopyWithoutItsSpareMemoryIsGivenUp) {
  const Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->BeginStep());
  TableStore::LoadPermit other = store_->BeginLoad("n", {});
  pool_->Expect("n", {4 * kMiB, 4 * kMiB, 4 * kMiB});
  auto arena = std::move(pool_->Take("n", 4 * kMiB, 4 * kMiB).value());
  copy_ahead_->PerformStep();
  copy_ahead_->EndStep();
  EXPECT_EQ(store_->Statistics().copying_bytes, 0);
  EXPECT_EQ(pool_->Statistics().in_use_count, 2);
  pool_->GiveBack(std::move(arena));
  pool_->Forget("n");
  KeepMemory();
  other.reset();
  EXPECT_TRUE(copy_ahead_->Step());
}

// Not a step after the other, because the end of each wakes the keeper.
TEST_F(TableStoreTest, TheKeeperRestsAfterACopyWithoutMemory) {
  const Version first = Loaded("a");
  store_->Expect("m", TablesOf(1));
  const size_t slab_bytes = 2 * kTableSlabBytes;
  auto slab = std::move(pool_->Take("n", slab_bytes, 0).value());
  slab->SetSmallPagesAtStart(true);
  // Counts as memory up to its last page.
  slab->start()[kTableSlabBytes - 1] = std::byte{1};
  pool_->GiveBack(std::move(slab));
  ASSERT_TRUE(copy_ahead_->BeginStep());
  copy_ahead_->PerformStep();
  copy_ahead_->EndStep();
  int step_count = 0;
  SlabKeeper keeper(pool_.get(), nullptr, [&] {
    ++step_count;
    return copy_ahead_->Step();
  });
  ASSERT_TRUE(keeper.WaitUntilIdle(60'000'000'000));
  keeper.Stop();
  EXPECT_LE(step_count, 2);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
}

// It does not come back as an owner without tables.
TEST_F(TableStoreTest, AModelThatIsGoneInAStepLeavesNothing) {
  for (const int step_count : {0, 1, 3}) {
    Version first = Loaded("a");
    KeepMemory();
    for (int i = 0; i < step_count; ++i) ASSERT_TRUE(copy_ahead_->Step());
    ASSERT_TRUE(copy_ahead_->BeginStep());
    store_->Forget("m");
    copy_ahead_->PerformStep();
    copy_ahead_->EndStep();
    EXPECT_FALSE(copy_ahead_->Step());
    first = {};
    EXPECT_EQ(store_->Statistics().standby_count, 0);
    EXPECT_EQ(pool_->Statistics().in_use_count, 0);
    while (pool_->KeepStep()) {
    }
    EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0) << "no memory is kept for it";
  }
}

TEST_F(TableStoreTest, AStoppedStoreCopiesNothingAhead) {
  const Version first = Loaded("a");
  KeepMemory();
  ASSERT_TRUE(copy_ahead_->Step());
  copy_ahead_.reset();
  EXPECT_EQ(store_->Statistics().standby_count, 0);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
}

TEST_F(TableStoreTest, MemoryForOthersIsNotTakenForACopyAhead) {
  const Version first = Loaded("a");
  pool_->Expect("n", {4 * kMiB, 4 * kMiB, 4 * kMiB});
  KeepMemory();
  EXPECT_FALSE(copy_ahead_->Step());
  // The model's own arena is of the same load.
  pool_->Forget("n");
  pool_->Expect("m", {4 * kMiB, 4 * kMiB, 4 * kMiB});
  KeepMemory();
  EXPECT_TRUE(copy_ahead_->Step());
}

// A copy has the spare memory for itself, but for an eighth of it.
TEST_F(TableStoreTest, ASmallNeighbourHoldsUpNoCopyAhead) {
  const size_t table_bytes = 32 * kMiB;
  const TableWish wish{"m", "a", table_bytes, /*is_written=*/true};
  VersionTables tables;
  tables.Add(table_bytes, kRowBytes, /*is_written=*/true);
  std::unique_ptr<TableClaim> claim;
  {
    const auto permit = store_->BeginLoad("m", {wish});
    claim = std::move(store_->Claim(wish, kRowBytes, permit).value());
    claim->BeginOverwrite();
    std::memset(claim->data(), 1, table_bytes);
    claim->EndOverwrite();
    claim->Commit();
  }
  pool_->Expect("n", {6 * kMiB, 6 * kMiB, 6 * kMiB});
  KeepMemory(tables);
  EXPECT_FALSE(copy_ahead_->Step());
  pool_->Expect("n", {4 * kMiB, 4 * kMiB, 4 * kMiB});
  EXPECT_TRUE(copy_ahead_->Step());
}

TEST(TableStore, KeepsNoCopyAheadIfItKeepsNoTables) {
  const auto pool = std::make_shared<SlabPool>(SlabPoolOptions());
  const auto store = NewStore(pool, 0);
  Load load(store.get(), "m", "a", /*is_written=*/true);
  load.Restore();
  const Version first = load.Finish();
  store->Expect("m", TablesOf(1));
  pool->Refill(SIZE_MAX);
  while (pool->KeepStep()) {
  }
  EXPECT_FALSE(CopyAhead(store).Step());
}

TEST_F(TableStoreTest, ARetiredCopyIsUndoneAndWrittenAgain) {
  const Version first = Loaded("a");
  Version second = Loaded("a", {1, 2, 3});
  ExpectIntact(first);
  ExpectIntact(second);
  second = {};
  Load third = NewLoad("a");
  EXPECT_EQ(third.claim().use(), TableUse::kUndo);
  EXPECT_EQ(third.claim().changed_row_count(), 3);
  EXPECT_EQ(third.claim().resident_bytes(), kTableBytes);
  third.Restore();
  third.Scatter({3, 4}, std::byte{9});
  ExpectIntact(third.Finish());
  ExpectIntact(first);
}

// The rows behind the table are not pinned, and a pinned table is written and undone as any other.
TEST_F(TableStoreTest, ATableIsPinnedOnceForAllItsVersions) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  pool_->PinWith(pinner);
  const Version first = Loaded("a");
  for (int round = 0; round < 3; ++round) {
    Load load = NewLoad("a");
    load.Restore();
    load.Scatter({round, 5}, std::byte{9});
    load.claim().Pin();
    ExpectIntact(load.Finish());
    EXPECT_EQ(pinner->calls, std::vector<size_t>{RoundUp(kTableBytes, kPageBytes)});
    pinner->ExpectAllResident();
  }
  ExpectIntact(first);
}

TEST_F(TableStoreTest, RowsThatAreReplacedTwiceGetTheirFirstBytesBack) {
  Load load = NewLoad("a");
  load.Restore();
  load.Scatter({5, 5, 6}, std::byte{8});
  load.Scatter({6, 5, 7}, std::byte{9});
  Version version = load.Finish();
  ExpectIntact(version);
  version = {};
  ExpectIntact(Loaded("a"));
}

TEST_F(TableStoreTest, ChangedRowsAreThoseThatWereReplaced) {
  using Rows = std::vector<int64_t>;
  Version retired = Loaded("a", {8, 9});
  retired = {};
  Load load = NewLoad("a");
  EXPECT_EQ(load.claim().ChangedRows(), std::nullopt) << "before the restore";
  load.Restore();
  EXPECT_EQ(load.claim().ChangedRows(), Rows());
  load.Scatter({6, 2, 6, -1}, std::byte{8});
  EXPECT_EQ(load.claim().ChangedRows(), (Rows{2, 6}));
  load.claim().LoseContents();
  EXPECT_EQ(load.claim().ChangedRows(), std::nullopt);
  Load reader = NewLoad("b", /*is_written=*/false);
  reader.Restore();
  const Version shared = reader.Finish();
  EXPECT_EQ(NewLoad("b", /*is_written=*/false).claim().ChangedRows(), Rows());
}

TEST_F(TableStoreTest, IdsOutOfRangeAreNoRows) {
  Version version = Loaded("a", {-1, 2, static_cast<int64_t>(kRowCount), INT64_MIN});
  ExpectIntact(version);
  version = {};
  EXPECT_EQ(NewLoad("a").claim().changed_row_count(), 1);
}

TEST_F(TableStoreTest, ALogWithoutRoomLosesTheContents) {
  std::vector<int64_t> most(kRowCount / 2);
  for (size_t i = 0; i < most.size(); ++i) most[i] = static_cast<int64_t>(i);
  Version version = Loaded("a", most);
  ExpectIntact(version);
  version = {};
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().use(), TableUse::kOverwrite);
  EXPECT_EQ(next.claim().reason(), ReadReason::kUnknown);
}

TEST_F(TableStoreTest, AHeldTableIsCopiedAndItsRowsAreUndone) {
  const Version first = Loaded("a", {1, 2, 2});
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().use(), TableUse::kFresh);
  EXPECT_EQ(next.claim().reason(), ReadReason::kNone);
  ASSERT_TRUE(next.claim().copies());
  EXPECT_EQ(next.claim().changed_row_count(), 3);
  next.Restore();
  EXPECT_EQ(next.claim().changed_row_count(), 0);
  next.Scatter({2, 3}, std::byte{9});
  Version second = next.Finish();
  ExpectIntact(first);
  ExpectIntact(second);
  // The copy has a log of its own.
  second = {};
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kUndo);
  ExpectIntact(Loaded("a", {4}));
}

TEST_F(TableStoreTest, ATableThatIsCopiedIsNotWrittenMeanwhile) {
  Version first = Loaded("a", {1});
  Load copying = NewLoad("a");
  ASSERT_TRUE(copying.claim().copies());
  first = {};
  EXPECT_EQ(store_->Statistics().held_count, 2);
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kFresh);
  copying.Restore();
  EXPECT_EQ(store_->Statistics().held_count, 1);
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kUndo);
  ExpectIntact(copying.Finish());
}

TEST_F(TableStoreTest, ATableMayBeUnloadedWhileItIsCopied) {
  Version first = Loaded("a", {1});
  Load copying = NewLoad("a");
  first = {};
  store_->Forget("m");
  copying.Restore();
  EXPECT_EQ(store_->Statistics().held_count, 1);
  ExpectIntact(copying.Finish());
}

TEST_F(TableStoreTest, ACopyThatFailsLeavesItsSourceAlone) {
  const Version first = Loaded("a", {1});
  NewLoad("a").Restore(kRowCount / 3);
  ExpectIntact(first);
  EXPECT_EQ(store_->Statistics().held_count, 1);
  EXPECT_EQ(store_->Statistics().dirty_count, 1);
}

TEST_F(TableStoreTest, ReadersShareATableThatNobodyWrites) {
  Load first = NewLoad("a", false);
  first.Restore();
  // Its contents are not verified yet.
  EXPECT_EQ(NewLoad("a", false).claim().use(), TableUse::kFresh);
  const Version version = first.Finish();
  Load second = NewLoad("a", false);
  EXPECT_EQ(second.claim().use(), TableUse::kShare);
  EXPECT_EQ(second.claim().data(), version.data);
  EXPECT_FALSE(second.claim().is_writable());
  // A writer gets memory of its own.
  Load writer = NewLoad("a");
  EXPECT_NE(writer.claim().data(), version.data);
  EXPECT_TRUE(writer.claim().is_writable());
}

TEST_F(TableStoreTest, NoOneSharesATableThatALoadMayWrite) {
  Loaded("a");
  const Load writer = NewLoad("a");
  EXPECT_EQ(NewLoad("a", false).claim().use(), TableUse::kFresh);
}

TEST_F(TableStoreTest, ALoadThatEndsBeforeItsFirstWriteChangesNothing) {
  Loaded("a", {1, 2});
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kUndo);
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().use(), TableUse::kUndo);
  EXPECT_EQ(next.claim().changed_row_count(), 2);
}

TEST_F(TableStoreTest, AFailedUndoGoesOnInTheNextLoad) {
  Loaded("a", {1, 2});
  NewLoad("a").Restore(1);
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().use(), TableUse::kUndo);
  EXPECT_EQ(next.claim().changed_row_count(), 1);
  next.Restore();
  ExpectIntact(next.Finish());
}

TEST_F(TableStoreTest, RowsOfAFailedLoadAreUndone) {
  Loaded("a", {1, 2});
  {
    Load failing = NewLoad("a");
    failing.Restore();
    failing.Scatter({2, 5, 5}, std::byte{9});
  }
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().changed_row_count(), 3);
  next.Restore();
  ExpectIntact(next.Finish());
}

TEST_F(TableStoreTest, ALoadThatFailsAfterItsReadLeavesTheTable) {
  NewLoad("a").Restore();
  EXPECT_EQ(NewLoad("a").claim().use(), TableUse::kUndo);
}

TEST_F(TableStoreTest, ALoadThatFailsWithinItsReadLeavesADirtyTable) {
  Loaded("a", {1, 2});
  NewLoad("b").Restore(1);
  EXPECT_EQ(store_->Statistics().dirty_count, 1);
  EXPECT_EQ(NewLoad("a").claim().reason(), ReadReason::kUnknown);
  ExpectIntact(Loaded("a"));
}

// Otherwise a room for the model's next version seems to be in memory already, and is given away.
TEST_F(TableStoreTest, FreeTablesCountWithTheMemoryTheyHave) {
  store_->Expect("m", BigTable());
  EXPECT_EQ(LoadBig(0), 0) << "it failed before its first write";
  const size_t part_bytes = LoadBig(kBigBytes / kRowBytes / 4);
  EXPECT_GE(part_bytes, kBigBytes / 4);
  EXPECT_LE(part_bytes, kBigBytes / 4 + kSlabUnitBytes);
  EXPECT_EQ(LoadBig(kBigBytes / kRowBytes), kBigBytes);
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  EXPECT_EQ(LoadBig(1, "b"), kBigBytes) << "the former bytes are of no use, and their memory is";
  EXPECT_EQ(store_->Statistics().dirty_count, 1);
}

TEST_F(TableStoreTest, AFailedLoadWithAnUnloggedWriteLeavesADirtyTable) {
  Loaded("a", {1, 2});
  {
    Load failing = NewLoad("a");
    failing.Restore();
    failing.claim().LoseContents();
  }
  EXPECT_EQ(store_->Statistics().dirty_count, 1);
}

TEST_F(TableStoreTest, KeepsTheTablesOfOneVersionAndReturnsTheRest) {
  {
    const Version one = Loaded("a");
    const Version two = Loaded("a");
    const Version three = Loaded("a");
    EXPECT_EQ(store_->Statistics().held_count, 3);
  }
  EXPECT_EQ(store_->Statistics().held_count, 0);
  EXPECT_EQ(store_->Statistics().standby_count, 1);
  EXPECT_EQ(store_->Statistics().standby_bytes, kTableBytes);
  EXPECT_EQ(pool_->Statistics().in_use_count, 1);
}

TEST_F(TableStoreTest, AModelThatIsGoneLeavesNothing) {
  Version one = Loaded("a");
  Loaded("a");
  store_->Forget("m");
  EXPECT_EQ(store_->Statistics().standby_count, 0);
  ExpectIntact(one);
  one = {};
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

TEST_F(TableStoreTest, ASealedTableIsWrittenByTheNextLoad) {
  Load load = NewLoad("a");
  load.Restore();
  load.Scatter({4}, std::byte{3});
  ASSERT_TRUE(store_->Seal({&load.claim()}).ok());
  load.Finish();
  ExpectIntact(Loaded("a", {9}));
}

TEST_F(TableStoreTest, ThePoolKeepsMemoryUntilThereAreTwoCopies) {
  const Version first = Loaded("a");
  store_->Expect("m", TablesOf(1));
  pool_->Refill(SIZE_MAX);
  while (pool_->KeepStep()) {
  }
  EXPECT_GE(pool_->Statistics().spare_resident_bytes, kTableBytes);
  const Version second = Loaded("a");
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
  store_->Expect("m", TablesOf(1));
  pool_->Refill(SIZE_MAX);
  while (pool_->KeepStep()) {
  }
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
}

// Else the pool may be told last what was true first, and keep memory for a model that is gone.
TEST_F(TableStoreTest, NoNeedChangesWhileThePoolIsTold) {
  std::future<TableStatistics> other;
  bool was_let_in = false;
  pool_->NotifyOfWork([&] {
    if (other.valid()) return;
    other = std::async(std::launch::async, [this] { return store_->Statistics(); });
    was_let_in = other.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
  });
  store_->Expect("m", TablesOf(1));
  pool_->NotifyOfWork(nullptr);
  ASSERT_TRUE(other.valid());
  EXPECT_EQ(other.get().held_count, 0);
  EXPECT_FALSE(was_let_in);
}

#ifdef __SANITIZE_THREAD__
// It takes half a second for each, and has no races to find: a sequence has one thread.
constexpr int kSequenceCount = 2;
#else
constexpr int kSequenceCount = 40;
#endif

// The tables of a version. Both sizes take one unit of a slab.
struct TablesOfVersion {
  std::string owner;
  bool is_written = false;
  std::vector<std::pair<std::string, size_t>> files;  // and sizes
  std::vector<Version> tables;
  uint64_t number = 0;  // orders the versions by their loads

  std::vector<TableWish> Wishes() const {
    std::vector<TableWish> wishes;
    for (const auto& [file, bytes] : files) wishes.push_back({owner, file, bytes, is_written});
    return wishes;
  }
  VersionTables Sizes() const {
    VersionTables sizes;
    for (const auto& [file, bytes] : files) sizes.Add(bytes, kRowBytes, is_written);
    return sizes;
  }
};

class StoreModel {
 public:
  explicit StoreModel(uint32_t seed)
      : rng_(seed),
        kept_count_(Below(3)),
        has_keeper_(Below(3) > 0),
        store_(NewStore(pool_, kept_count_)),
        written_share_(Below(3)) {}

  void TakeAction() {
    TakeOneAction();
    ExpectExactSums();
  }
  void End() {
    while (!versions_.empty()) Unload();
    copy_ahead_.reset();
    Forget("m");
    Forget("n");
    EXPECT_EQ(pool_->Statistics().in_use_count, 0);
  }

  int checked_count() const { return checked_count_; }
  int step_count() const { return step_count_; }

 private:
  int Below(int end) { return static_cast<int>(rng_() % static_cast<uint32_t>(end)); }

  void TakeOneAction() {
    const std::string owner = Below(3) == 0 ? "n" : "m";
    switch (Below(12)) {
      case 0:
      case 1:
      case 2:
        return LoadVersion(owner);
      case 3:
      case 4:
        return Unload();
      case 5:
        return FailLoad(owner);
      case 6:
        return Below(10) == 0 ? Forget(owner) : FailLoad(owner);
      case 7:
      case 8:
        if (has_keeper_) CopySomeAhead(Below(8));
        return;
      case 9:
        if (has_keeper_) TakeActionInAStep();
        return;
      case 10:
        // The load of a version without tables.
        if (Below(3) == 0) static_cast<void>(store_->BeginLoad(owner, {}));
        return;
      default:
        return ExpectAllIntact();
    }
  }
  // As if the keeper lost its core in the middle of a step.
  void TakeActionInAStep() {
    KeepPermitted();
    if (!copy_ahead_->BeginStep()) return;
    const std::string owner = Below(3) == 0 ? "n" : "m";
    switch (Below(5)) {
      case 0:
        LoadVersion(owner);
        break;
      case 1:
        FailLoad(owner);
        break;
      case 2:
        Forget(owner);
        break;
      default:
        Unload();
    }
    copy_ahead_->PerformStep();
    copy_ahead_->EndStep();
    ++step_count_;
  }
  // Each slab is that of one table, and the tables that versions have are those that are held.
  void ExpectExactSums() const {
    std::map<const std::byte*, size_t> held;
    int64_t held_bytes = 0;
    for (const TablesOfVersion& version : versions_) {
      for (const Version& table : version.tables) held[table.data] = table.expected.size();
    }
    for (const auto& [data, bytes] : held) held_bytes += static_cast<int64_t>(bytes);
    const TableStatistics statistics = store_->Statistics();
    EXPECT_EQ(statistics.held_count, held.size());
    EXPECT_EQ(statistics.held_bytes, held_bytes);
    size_t version_bytes_max = 0;
    for (const auto& [owner, sizes] : expected_) {
      version_bytes_max = std::max(version_bytes_max, sizes.bytes);
    }
    EXPECT_LE(statistics.standby_bytes, kept_count_ * version_bytes_max);
    const auto free_bytes = static_cast<int64_t>(store_->FreeBytes("m") + store_->FreeBytes("n"));
    EXPECT_LE(free_bytes, statistics.standby_bytes + statistics.copying_bytes);
    if (statistics.dirty_count == 0 && statistics.copying_bytes == 0) {
      EXPECT_EQ(free_bytes, statistics.standby_bytes);
    }
    if (!has_keeper_) EXPECT_LE(held_bytes + free_bytes, ResidentTableBytes());
    const int64_t copying_count = statistics.copying_bytes > 0 ? 1 : 0;
    const int64_t table_count = statistics.held_count + statistics.standby_count + copying_count;
    EXPECT_EQ(pool_->Statistics().in_use_count, table_count);
    if (IsAlone("m")) ExpectMissingMemory(expected_.at("m"), table_count);
  }
  // The most that all tables have in memory: at each place where a load has had one. The keeper has
  // tables at other places, too.
  int64_t ResidentTableBytes() const {
    size_t page_count = 0;
    for (const auto& [place, bytes] : places_) {
      std::vector<unsigned char> pages(bytes / kPageBytes);
      if (mincore(place, bytes, pages.data()) != 0) continue;
      page_count += std::count_if(pages.begin(), pages.end(), [](char page) { return page & 1; });
    }
    return static_cast<int64_t>(page_count * kPageBytes);
  }
  // True if no other model has tables, or is known.
  bool IsAlone(const std::string& owner) const {
    return expected_.size() == 1 && expected_.count(owner) > 0 &&
           std::all_of(versions_.begin(), versions_.end(),
                       [&owner](const TablesOfVersion& version) { return version.owner == owner; });
  }
  // The pool aims at the memory that is missing for a copy beside those of the version that serves.
  void ExpectMissingMemory(const VersionTables& sizes, int64_t table_count) const {
    const size_t missing_bytes =
        sizes.MissingBytes(static_cast<size_t>(table_count * kTableSlabBytes));
    pool_->Refill(SIZE_MAX);
    while (pool_->KeepStep()) {
    }
    const auto spare_bytes = static_cast<size_t>(pool_->Statistics().spare_resident_bytes);
    EXPECT_GE(spare_bytes, missing_bytes);
    EXPECT_LE(spare_bytes, missing_bytes + SpareSlackOf(missing_bytes));
  }
  std::string File() { return Below(4) == 0 ? "b" : "a"; }
  std::vector<int64_t> Ids() {
    std::vector<int64_t> ids(Below(300));
    for (int64_t& id : ids) id = Below(static_cast<int>(kRowCount) + 2) - 1;
    return ids;
  }

  void ExpectAllIntact() const {
    for (const TablesOfVersion& version : versions_) {
      for (const Version& table : version.tables) ExpectIntact(table);
    }
  }
  // Most versions have tables of both sizes, in any order.
  TablesOfVersion Draft(const std::string& owner) {
    TablesOfVersion version;
    version.owner = owner;
    version.is_written = Below(3) >= written_share_;
    version.files = {{File(), kTableBytes}, {File(), 2 * kTableBytes}};
    if (Below(2) == 0) std::swap(version.files[0], version.files[1]);
    if (Below(4) == 0) version.files.pop_back();
    return version;
  }
  std::vector<Load> Begin(const TablesOfVersion& version) {
    const std::vector<TableWish> wishes = version.Wishes();
    const TableStore::LoadPermit permit = store_->BeginLoad(version.owner, wishes);
    std::vector<Load> loads;
    for (const TableWish& wish : wishes) {
      loads.emplace_back(store_.get(), wish, permit);
      size_t& bytes = places_[loads.back().claim().data()];
      bytes = std::max(bytes, wish.bytes);
    }
    return loads;
  }

  void LoadVersion(const std::string& owner) {
    TablesOfVersion version = Draft(owner);
    std::vector<Load> loads = Begin(version);
    for (Load& load : loads) {
      load.Restore();
      if (version.is_written) load.Scatter(Ids(), static_cast<std::byte>(Below(256)));
      if (version.is_written && Below(4) == 0) {
        load.Scatter(Ids(), static_cast<std::byte>(Below(256)));
      }
      if (Below(8) == 0) {
        ASSERT_TRUE(store_->Seal({&load.claim()}).ok());
      }
    }
    store_->Expect(owner, version.Sizes());
    expected_[owner] = version.Sizes();
    for (Load& load : loads) version.tables.push_back(load.Finish());
    version.number = ++load_count_;
    versions_.push_back(std::move(version));
    ExpectAllIntact();
  }
  // Ends at a random step, and frees its tables one by one.
  void FailLoad(const std::string& owner) {
    TablesOfVersion version = Draft(owner);
    version.is_written = true;
    std::vector<Load> loads = Begin(version);
    const int step_count = Below(4);
    for (Load& load : loads) {
      const bool is_whole = Below(2) == 0;
      if (step_count > 0) {
        load.Restore(is_whole ? SIZE_MAX : static_cast<size_t>(Below(kRowCount)));
      }
      if (step_count > 1) load.Scatter(Ids(), std::byte{1});
      if (step_count > 2) load.claim().LoseContents();
    }
  }
  void Unload() {
    if (versions_.empty()) return;
    const auto place = versions_.begin() + Below(static_cast<int>(versions_.size()));
    TablesOfVersion version = std::move(*place);
    versions_.erase(place);
    while (!version.tables.empty()) {
      const auto table = version.tables.begin() + Below(static_cast<int>(version.tables.size()));
      ExpectIntact(*table);
      version.tables.erase(table);
    }
    ExpectDeltaReadsNothing(version);
  }
  // The tables of the model's newest version are there for the next one, whatever was before,
  // unless there was no place for it.
  void ExpectDeltaReadsNothing(const TablesOfVersion& gone) {
    const bool has_newer =
        std::any_of(versions_.begin(), versions_.end(), [&gone](const TablesOfVersion& other) {
          return other.owner == gone.owner && other.number > gone.number;
        });
    const auto expected = expected_.find(gone.owner);
    if (has_newer || kept_count_ == 0 || expected == expected_.end() ||
        expected->second.bytes < gone.Sizes().bytes) {
      return;
    }
    ++checked_count_;
    if (Below(3) == 0) {
      // A load that fails at once comes between.
      static_cast<void>(Begin(gone));
    }
    for (Load& load : Begin(gone)) {
      EXPECT_TRUE(load.claim().bytes_to_fill() == 0 || load.claim().copies());
    }
  }
  void Forget(const std::string& owner) {
    store_->Forget(owner);
    expected_.erase(owner);
  }
  // Keeps the memory that is asked for, as far as there is room.
  void KeepPermitted() {
    pool_->Refill(Below(3) == 0 ? static_cast<size_t>(Below(3)) * kSlabUnitBytes : SIZE_MAX);
    while (pool_->KeepStep()) {
    }
  }
  // Copies at most so many pieces. The slab of a copy has the memory that it needs, and the spares
  // have so much less.
  void CopySomeAhead(int piece_count) {
    KeepPermitted();
    for (bool has_copied = true; has_copied && piece_count > 0; --piece_count) {
      const SlabPoolStatistics before = pool_->Statistics();
      has_copied = copy_ahead_->Step().has_value();
      const SlabPoolStatistics after = pool_->Statistics();
      if (after.in_use_count > before.in_use_count) {
        EXPECT_EQ(SpareBytes(before) - SpareBytes(after), kTableSlabBytes);
      }
    }
  }
  static int64_t SpareBytes(const SlabPoolStatistics& slabs) {
    return slabs.spare_resident_bytes + slabs.surplus_resident_bytes;
  }

  std::mt19937 rng_;
  const std::shared_ptr<SlabPool> pool_ = std::make_shared<SlabPool>(SlabPoolOptions());
  const int kept_count_;
  const bool has_keeper_;
  const std::shared_ptr<TableStore> store_;
  std::optional<CopyAhead> copy_ahead_{std::in_place, store_};
  const int written_share_;
  std::map<std::byte*, size_t> places_;  // and the largest table that was there
  std::vector<TablesOfVersion> versions_;
  std::map<std::string, VersionTables> expected_;  // of the version that was loaded last, by owner
  uint64_t load_count_ = 0;
  int checked_count_ = 0;
  int step_count_ = 0;  // in the middle of which something happened
};

// And a delta of a version that was unloaded reads only what changed.
TEST(TableStoreModel, EveryVersionKeepsItsBytes) {
  int checked_count = 0;
  int step_count = 0;
  for (uint32_t seed = 0; seed < kSequenceCount; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StoreModel model(seed);
    for (int i = 0; i < 60 && !::testing::Test::HasFailure(); ++i) model.TakeAction();
    model.End();
    checked_count += model.checked_count();
    step_count += model.step_count();
  }
  EXPECT_GT(step_count, kSequenceCount / 2) << "steps with something in their middle";
  EXPECT_GT(checked_count, 5 * kSequenceCount / 2) << "deltas of an unloaded version";
}

// The keeper's thread, and what it has done.
class CopyingKeeper {
 public:
  CopyingKeeper(SlabPool* pool, CopyAhead* copy_ahead) : thread_([=] { Run(pool, copy_ahead); }) {}

  // Waits until the keeper has looked for work so often.
  void AwaitLooks(int count) const {
    const int64_t last = look_count_ + count;
    while (look_count_ < last) std::this_thread::yield();
  }
  // Ends the thread. Returns how many pieces it has copied.
  int64_t Stop() {
    is_stopping_ = true;
    thread_.join();
    return piece_count_;
  }

 private:
  void Run(SlabPool* pool, CopyAhead* copy_ahead) {
    for (; !is_stopping_; ++look_count_) {
      pool->Refill(SIZE_MAX);
      if (!pool->KeepStep() && copy_ahead->Step()) ++piece_count_;
    }
  }

  std::atomic<int64_t> look_count_{0};
  std::atomic<bool> is_stopping_{false};
  int64_t piece_count_ = 0;
  std::thread thread_;  // The last one, because it uses the others.
};

// Three threads load and unload versions of one model at once, and one forgets the model and
// expects it again. Each waits for the keeper, which copies ahead while all of them wait.
TEST(TableStoreThreads, NobodySharesATableThatIsWritten) {
  const std::shared_ptr<SlabPool> pool = std::make_shared<SlabPool>(SlabPoolOptions());
  const std::shared_ptr<TableStore> store = NewStore(pool, 2);
  // The pool has memory for a copy besides the tables of three versions.
  VersionTables tables = TablesOf(1);
  tables.serving_count = 3;
  store->Expect("m", tables);
  std::optional<CopyAhead> copy_ahead(std::in_place, store);
  CopyingKeeper keeper(pool.get(), &*copy_ahead);
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&store, &keeper, seed] {
      std::mt19937 rng(seed);
      for (int i = 0; i < 40; ++i) {
        const bool is_written = rng() % 2 == 0;
        Load load(store.get(), "m", rng() % 4 == 0 ? "b" : "a", is_written);
        load.Restore();
        if (is_written) load.Scatter({static_cast<int64_t>(rng() % kRowCount)}, std::byte{1});
        const Version version = load.Finish();
        keeper.AwaitLooks(static_cast<int>(rng() % 20));
        ExpectIntact(version);
      }
    });
  }
  threads.emplace_back([&store, &keeper, &tables] {
    for (int i = 0; i < 40; ++i) {
      keeper.AwaitLooks(5);
      store->Forget("m");
      EXPECT_GE(store->Statistics().held_count, 0);
      store->Expect("m", tables);
    }
  });
  for (std::thread& thread : threads) thread.join();
  store->Forget("m");
  EXPECT_GT(keeper.Stop(), 0) << "nothing was copied ahead";
  copy_ahead.reset();
  EXPECT_EQ(store->Statistics().held_count, 0);
  EXPECT_EQ(pool->Statistics().in_use_count, 0);
  while (pool->KeepStep()) {
  }
  EXPECT_EQ(pool->Statistics().spare_resident_bytes, 0) << "no memory is kept for the model";
}

// The log of replaced rows is read with the size of its own rows.
TEST_F(TableStoreTest, AnUnwrittenClaimOfOtherRowsChangesNothing) {
  Loaded("a", {1, 2});
  {
    const auto other = ClaimAlone({"m", "b", kTableBytes, /*is_written=*/true}, 4 * kRowBytes);
    ASSERT_EQ(other->use(), TableUse::kOverwrite);
  }
  Load next = NewLoad("a");
  EXPECT_EQ(next.claim().use(), TableUse::kUndo);
  EXPECT_EQ(next.claim().changed_row_count(), 2);
  next.Restore();
  ExpectIntact(next.Finish());
}

// The same bytes of a checkpoint, which another version reads as rows of another size.
class OtherRowsTest : public TableStoreTest, public ::testing::WithParamInterface<size_t> {
 protected:
  std::unique_ptr<TableClaim> Claim() const {
    return ClaimAlone({"m", "a", kTableBytes, /*is_written=*/true}, GetParam());
  }
};

TEST_P(OtherRowsTest, ACopyUndoesTheRowsOfItsSource) {
  const Version first = Loaded("a", {1, 6, kRowCount - 1});
  const auto claim = Claim();
  ASSERT_TRUE(claim->copies());
  claim->BeginOverwrite();
  claim->CopyNext(kTableBytes);
  claim->UndoRows(3);
  claim->EndOverwrite();
  ExpectIntact(RowsOfFile("a", claim->data()));
  ExpectIntact(first);
}

TEST_P(OtherRowsTest, ARetiredCopyIsUndoneAndLogsTheNewRows) {
  Loaded("a", {1, 6, kRowCount - 1});
  auto claim = Claim();
  ASSERT_EQ(claim->use(), TableUse::kUndo);
  claim->UndoRows(3);
  ExpectIntact(RowsOfFile("a", claim->data()));
  const auto last = static_cast<int64_t>(kTableBytes / GetParam()) - 1;
  EXPECT_TRUE(claim->LogRows(&last, 1));
  EXPECT_EQ(claim->changed_row_count(), 1);
  std::memset(claim->data() + kTableBytes - GetParam(), 9, GetParam());
  claim->Commit();
  claim.reset();
  claim = Claim();
  ASSERT_EQ(claim->use(), TableUse::kUndo);
  claim->UndoRows(1);
  ExpectIntact(RowsOfFile("a", claim->data()));
}

INSTANTIATE_TEST_SUITE_P(RowBytes, OtherRowsTest, ::testing::Values(kRowBytes / 2, 2 * kRowBytes));

TEST_F(TableStoreTest, MemoryOfOtherRowsIsOverwritten) {
  Loaded("a", {1});
  auto claim = ClaimAlone({"m", "b", kTableBytes, /*is_written=*/true}, 4 * kRowBytes);
  ASSERT_EQ(claim->use(), TableUse::kOverwrite);
  claim->BeginOverwrite();
  std::memset(claim->data(), 1, kTableBytes);
  // The last row, and one beyond it.
  const std::vector<int64_t> ids = {kRowCount / 4 - 1, kRowCount / 4};
  EXPECT_TRUE(claim->LogRows(ids.data(), ids.size()));
  EXPECT_EQ(claim->changed_row_count(), 1);
  std::memset(claim->data() + kTableBytes - 4 * kRowBytes, 2, 4 * kRowBytes);
  claim->UndoRows(1);
  EXPECT_EQ(claim->data()[kTableBytes - 1], std::byte{1});
}

}  // namespace
}  // namespace millpond::memory
