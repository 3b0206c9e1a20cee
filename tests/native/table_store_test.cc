// Holds the store of tables to its promises: by single cases, and over random sequences of loads
// that end well, fail at any step, and are unloaded in any order.
#include "native/memory/table_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;

constexpr size_t kRowBytes = 64;
constexpr size_t kTableBytes = 1 * kMiB;
constexpr size_t kRowCount = kTableBytes / kRowBytes;

std::shared_ptr<TableStore> NewStore(const std::shared_ptr<SlabPool>& pool, int kept_count = 1) {
  return std::make_shared<TableStore>(pool, kept_count);
}

// The table of a file, in which neighbouring rows differ. It is written and compared as one block,
// because the sanitizers take their time for each call.
const std::vector<std::byte>& TableOfFile(const std::string& contents) {
  thread_local std::map<char, std::vector<std::byte>> tables;
  std::vector<std::byte>& table = tables[contents.back()];
  for (size_t row = table.size() / kRowBytes; row < kRowCount; ++row) {
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
Version RowsOfFile(const std::string& contents, const std::byte* data) {
  Version version;
  version.expected = TableOfFile(contents);
  version.data = data;
  return version;
}

// A load of a version with one table.
class Load {
 public:
  Load(TableStore* store, const std::string& owner, std::string contents, bool is_written)
      : contents_(std::move(contents)),
        claim_(std::move(
            store->Claim({owner, contents_, kTableBytes, is_written}, kRowBytes).value())) {}

  TableClaim& claim() { return *claim_; }

  // Restores the first `row_count` rows.
  void Restore(size_t row_count = kRowCount) {
    if (claim_->use() == TableUse::kUndo) {
      claim_->UndoRows(row_count);
    } else if (claim_->use() != TableUse::kShare) {
      claim_->BeginOverwrite();
      if (claim_->copies()) return Copy(row_count);
      std::memcpy(claim_->data(), TableOfFile(contents_).data(), row_count * kRowBytes);
      if (row_count == kRowCount) claim_->EndOverwrite();
    }
  }
  // Replaces rows, as the scatter of an init op does.
  void Scatter(const std::vector<int64_t>& ids, std::byte value) {
    claim_->LogRows(ids.data(), ids.size());
    for (const int64_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= kRowCount) continue;
      WriteRow(claim_->data(), static_cast<size_t>(id), value);
      changed_.emplace_back(static_cast<size_t>(id), value);
    }
  }
  Version Finish() {
    claim_->Commit();
    Version version = RowsOfFile(contents_, claim_->data());
    for (const auto& [row, value] : changed_) WriteRow(version.expected.data(), row, value);
    version.hold = claim_->hold();
    claim_.reset();
    return version;
  }

 private:
  // In two pieces.
  void Copy(size_t row_count) {
    const size_t half = row_count / 2 * kRowBytes;
    claim_->Copy(0, half);
    claim_->Copy(half, row_count * kRowBytes - half);
    if (row_count < kRowCount) return;
    claim_->UndoRows(1);
    claim_->UndoRows(row_count);
    claim_->EndOverwrite();
  }

  const std::string contents_;
  std::unique_ptr<TableClaim> claim_;
  std::vector<std::pair<size_t, std::byte>> changed_;
};

void ExpectIntact(const Version& version) {
  const std::byte* const expected = version.expected.data();
  if (std::memcmp(version.data, expected, kTableBytes) == 0) return;
  const auto wrong = std::mismatch(version.data, version.data + kTableBytes, expected);
  FAIL() << "row " << (wrong.first - version.data) / static_cast<std::ptrdiff_t>(kRowBytes);
}

class TableStoreTest : public ::testing::Test {
 protected:
  TableStoreTest() { store_->Expect("m", OneTable()); }

  static VersionTables OneTable() { return {kTableBytes, kTableBytes}; }
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

  const std::shared_ptr<SlabPool> pool_ = std::make_shared<SlabPool>(SlabPoolOptions());
  const std::shared_ptr<TableStore> store_ = NewStore(pool_);
};

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
  store_->Expect("m", OneTable());
  pool_->Refill(SIZE_MAX);
  while (pool_->KeepStep()) {
  }
  EXPECT_GE(pool_->Statistics().spare_resident_bytes, kTableBytes);
  const Version second = Loaded("a");
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
  store_->Expect("m", OneTable());
  pool_->Refill(SIZE_MAX);
  while (pool_->KeepStep()) {
  }
  EXPECT_EQ(pool_->Statistics().spare_resident_bytes, 0);
}

#ifdef __SANITIZE_THREAD__
// It takes half a second for each, and has no races to find: a sequence has one thread.
constexpr int kSequenceCount = 6;
#else
constexpr int kSequenceCount = 40;
#endif

class StoreModel {
 public:
  explicit StoreModel(uint32_t seed)
      : rng_(seed), store_(NewStore(pool_, Below(3))), written_share_(Below(3)) {}

  void TakeAction() {
    const std::string owner = Below(3) == 0 ? "n" : "m";
    switch (Below(8)) {
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
      default:
        for (const Version& version : versions_) ExpectIntact(version);
    }
  }
  void End() {
    while (!versions_.empty()) Unload();
    Forget("m");
    Forget("n");
    EXPECT_EQ(pool_->Statistics().in_use_count, 0);
  }

 private:
  int Below(int end) { return static_cast<int>(rng_() % static_cast<uint32_t>(end)); }
  std::string File() { return Below(4) == 0 ? "b" : "a"; }
  std::vector<int64_t> Ids() {
    std::vector<int64_t> ids(Below(300));
    for (int64_t& id : ids) id = Below(static_cast<int>(kRowCount) + 2) - 1;
    return ids;
  }

  void LoadVersion(const std::string& owner) {
    const bool is_written = Below(3) >= written_share_;
    Load load(store_.get(), owner, File(), is_written);
    load.Restore();
    if (is_written) load.Scatter(Ids(), static_cast<std::byte>(Below(256)));
    if (is_written && Below(4) == 0) load.Scatter(Ids(), static_cast<std::byte>(Below(256)));
    if (Below(8) == 0) {
      ASSERT_TRUE(store_->Seal({&load.claim()}).ok());
    }
    store_->Expect(owner, {kTableBytes, kTableBytes});
    versions_.push_back(load.Finish());
    ExpectIntact(versions_.back());
    const TableStatistics statistics = store_->Statistics();
    EXPECT_LE(statistics.standby_bytes, 2 * static_cast<int64_t>(kTableBytes));
  }
  // Ends at a random step.
  void FailLoad(const std::string& owner) {
    Load load(store_.get(), owner, File(), /*is_written=*/true);
    const int step_count = Below(4);
    const bool is_whole = Below(2) == 0;
    if (step_count > 0) load.Restore(is_whole ? kRowCount : static_cast<size_t>(Below(kRowCount)));
    if (step_count > 1) load.Scatter(Ids(), std::byte{1});
    if (step_count > 2) load.claim().LoseContents();
  }
  void Unload() {
    if (versions_.empty()) return;
    const int index = Below(static_cast<int>(versions_.size()));
    ExpectIntact(versions_[index]);
    versions_.erase(versions_.begin() + index);
  }
  void Forget(const std::string& owner) { store_->Forget(owner); }

  std::mt19937 rng_;
  const std::shared_ptr<SlabPool> pool_ = std::make_shared<SlabPool>(SlabPoolOptions());
  const std::shared_ptr<TableStore> store_;
  const int written_share_;
  std::vector<Version> versions_;
};

TEST(TableStoreModel, EveryVersionKeepsItsBytes) {
  for (uint32_t seed = 0; seed < kSequenceCount; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StoreModel model(seed);
    for (int i = 0; i < 60 && !::testing::Test::HasFailure(); ++i) model.TakeAction();
    model.End();
  }
}

// Several threads load and unload versions of one model at once.
TEST(TableStoreThreads, NobodySharesATableThatIsWritten) {
  const std::shared_ptr<SlabPool> pool = std::make_shared<SlabPool>(SlabPoolOptions());
  const std::shared_ptr<TableStore> store = NewStore(pool, 2);
  store->Expect("m", {kTableBytes, kTableBytes});
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&store, seed] {
      std::mt19937 rng(seed);
      for (int i = 0; i < 40; ++i) {
        const bool is_written = rng() % 2 == 0;
        Load load(store.get(), "m", "a", is_written);
        load.Restore();
        if (is_written) load.Scatter({static_cast<int64_t>(rng() % kRowCount)}, std::byte{1});
        ExpectIntact(load.Finish());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->Statistics().held_count, 0);
}

// The log of replaced rows is read with the size of its own rows.
TEST_F(TableStoreTest, AnUnwrittenClaimOfOtherRowsChangesNothing) {
  Loaded("a", {1, 2});
  {
    const auto other = std::move(
        store_->Claim({"m", "b", kTableBytes, /*is_written=*/true}, 4 * kRowBytes).value());
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
    return std::move(
        store_->Claim({"m", "a", kTableBytes, /*is_written=*/true}, GetParam()).value());
  }
};

TEST_P(OtherRowsTest, ACopyUndoesTheRowsOfItsSource) {
  const Version first = Loaded("a", {1, 6, kRowCount - 1});
  const auto claim = Claim();
  ASSERT_TRUE(claim->copies());
  claim->BeginOverwrite();
  claim->Copy(0, kTableBytes);
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
  auto claim =
      std::move(store_->Claim({"m", "b", kTableBytes, /*is_written=*/true}, 4 * kRowBytes).value());
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
