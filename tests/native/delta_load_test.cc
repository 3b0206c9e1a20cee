// Loads of versions whose tables are the same file: what is read, what is shared, and that each
// answer has the bits that a full load of the same directory gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/memory/copy_ahead.h"
#include "native/memory/jemalloc_api.h"
#include "native/memory/table_store.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/tensor_storage.h"
#include "native/tf/version_load.h"
#include "tests/native/delta_files.h"
#include "tests/native/temporary_directory.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/units.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using tensorflow::Tensor;
using testing::ChangedRows;
using testing::DeltaFiles;
using testing::kMiB;

constexpr int64_t kTableBytes = DeltaFiles::kRowCount * DeltaFiles::kWidth * sizeof(float);
constexpr int64_t kTablesBytes = DeltaFiles::kTableCount * kTableBytes;

using Step = Status (VersionLoad::*)();
const std::vector<Step> kStepsAfterArena = {&VersionLoad::CreateSession, &VersionLoad::Restore,
                                            &VersionLoad::RunInit, &VersionLoad::MakeCallables};

std::vector<Tensor> Answer(const servable::Servable& servable, const std::string& signature_name,
                           std::vector<Tensor> inputs) {
  tensor::TensorList fed;
  fed.storage().tensors = std::move(inputs);
  tensor::TensorList fetched;
  const tensor::Signature& signature = servable.signatures().at(signature_name);
  const Status ran =
      servable.Run(signature, tensor::OutputSet::All(signature.outputs.size()), {}, fed, &fetched);
  EXPECT_TRUE(ran.ok()) << ran.message();
  return fetched.storage().tensors;
}

// Returns all bits of the tables, and of an answer.
std::string BitsOf(const servable::Servable& servable) {
  std::string bits;
  std::vector<Tensor> tensors = Answer(servable, "tables", {});
  Tensor ids(tensorflow::DT_INT64, {200});
  for (int64_t i = 0; i < 200; ++i) ids.flat<int64_t>()(i) = i * 21;
  for (Tensor& y : Answer(servable, "serving_default", {ids})) tensors.push_back(y);
  for (const Tensor& tensor : tensors) {
    bits.append(static_cast<const char*>(tensor.data()), tensor.TotalBytes());
  }
  return bits;
}

// Returns the same of a load that keeps no table.
std::string BitsOfFullLoad(const std::string& directory) {
  VersionLoad load({"full", 1}, directory, {"serve"});
  EXPECT_TRUE(load.ReadGraph().ok());
  for (const Step step : kStepsAfterArena) EXPECT_TRUE((load.*step)().ok());
  FinishedLoad finished = std::move(load.Finish(nullptr, nullptr, 1).value());
  std::string bits = BitsOf(finished.entry->servable());
  EXPECT_TRUE(finished.entry->Destroy().ok());
  finished.version->Free();
  return bits;
}

// Changes the bits of a tensor in a version's checkpoint.
void InvertByteOf(const std::string& tensor, const std::string& directory) {
  const auto index = ReadCheckpointIndex(directory + "/variables/variables");
  for (const CheckpointEntry& entry : index.value().entries) {
    if (entry.name != tensor) continue;
    std::fstream file(DeltaFiles::ShardOf(directory, entry.shard),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(entry.offset_bytes);
    const int byte = file.get();
    file.seekp(entry.offset_bytes);
    file.put(static_cast<char>(~byte));
    return;
  }
  ADD_FAILURE() << "no tensor " << tensor;
}

// A version that serves, or is kept for a rollback.
struct Version {
  FinishedLoad load;
  std::string bits;  // of a full load
  std::vector<TableReport> tables;
  int64_t restored_bytes = 0;
  int64_t kept_bytes = 0;
  int64_t copied_bytes = 0;
  std::string tables_path;  // the file of the tables

  int64_t ReadTableBytes() const {
    int64_t bytes = 0;
    for (const TableReport& table : tables) bytes += static_cast<int64_t>(table.read_bytes);
    return bytes;
  }
};

class DeltaLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!memory::IsJemallocPreloaded()) GTEST_SKIP() << "without jemalloc there are no arenas";
    UseWriter(DeltaFiles::Writer::kScatterOnly);
  }
  void UseWriter(DeltaFiles::Writer writer) {
    files_.emplace(directory_.path(), writer);
    files_->NewBase(1);
  }

  // Copies at most so many pieces ahead, in the memory that the next version needs.
  void CopySomeAhead(int piece_count) {
    pool_->Refill(SIZE_MAX);
    while (pool_->KeepStep()) {
    }
    for (; piece_count > 0 && copy_ahead_.Step(); --piece_count) {
    }
  }

  std::string Path(const std::string& name) const { return directory_.File(name); }
  static std::vector<ChangedRows> NoChanges() { return {{}, {}}; }
  static std::vector<ChangedRows> Changes(std::vector<int64_t> ids, float value) {
    return {{ids, value}, {std::move(ids), value + 1000}};
  }

  // Returns a load that has its memory.
  std::unique_ptr<VersionLoad> Begin(const std::string& directory) {
    auto load = std::make_unique<VersionLoad>(servable::ServableId{"m", ++version_}, directory,
                                              std::vector<std::string>{"serve"});
    EXPECT_TRUE(load->ReadGraph().ok());
    EXPECT_TRUE(load->UseTables(store_).ok());
    const auto plan = load->PlanMemory(8 * kMiB);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_GE(static_cast<int64_t>(plan.value().parameter_bytes), kTablesBytes);
    const auto taken = load->TakeArena(pool_, plan.value().slab_bytes, &testing::RuntimeMemory());
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    return load;
  }
  // Takes the steps that follow, and ends at the first that fails.
  static Status TakeSteps(VersionLoad* load, size_t count = kStepsAfterArena.size()) {
    for (size_t i = 0; i < count; ++i) {
      Status taken = (load->*kStepsAfterArena[i])();
      if (!taken.ok()) return taken;
    }
    return {};
  }
  std::unique_ptr<Version> Load(const std::string& directory) {
    auto load = Begin(directory);
    const Status taken = TakeSteps(load.get());
    EXPECT_TRUE(taken.ok()) << taken.message();
    auto version = std::make_unique<Version>();
    version->tables = load->Tables().value();
    version->restored_bytes = load->restored_bytes();
    version->kept_bytes = load->kept_bytes();
    version->copied_bytes = load->copied_bytes();
    version->tables_path = files_->TablesPath();
    version->load = std::move(load->Finish(nullptr, nullptr, 1).value());
    // The pace of each restore op follows from the bytes of all.
    EXPECT_EQ(version->load.version->model().control()->restore_bytes,
              version->restored_bytes + version->copied_bytes);
    version->bits = BitsOfFullLoad(directory);
    ExpectRight(*version);
    return version;
  }
  std::unique_ptr<Version> WriteAndLoad(const std::string& name,
                                        const std::vector<ChangedRows>& changes, float dense) {
    files_->WriteVersion(Path(name), changes, dense);
    return Load(Path(name));
  }
  static void ExpectRight(const Version& version) {
    EXPECT_TRUE(BitsOf(version.load.entry->servable()) == version.bits) << "other bits";
  }
  static void Unload(std::unique_ptr<Version> version) {
    ASSERT_TRUE(version->load.entry->Destroy().ok());
    const memory::ArenaRemains remains = version->load.version->Free();
    EXPECT_EQ(remains.live_bytes, 0);
    EXPECT_EQ(remains.overflow_block_count, 0);
  }
  static std::vector<std::string> Reasons(const Version& version) {
    std::vector<std::string> reasons;
    for (const TableReport& table : version.tables) reasons.push_back(table.reason);
    return reasons;
  }

  const testing::TemporaryDirectory directory_;
  const std::shared_ptr<memory::SlabPool> pool_ =
      std::make_shared<memory::SlabPool>(memory::SlabPoolOptions());
  const std::shared_ptr<memory::TableStore> store_ = std::make_shared<memory::TableStore>(pool_, 1);
  memory::CopyAhead copy_ahead_{store_};
  std::optional<DeltaFiles> files_;
  int64_t version_ = 0;
};

TEST_F(DeltaLoadTest, TheThirdVersionReadsTheChangesAlone) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  EXPECT_EQ(base->ReadTableBytes(), kTablesBytes);
  auto second = WriteAndLoad("2", Changes({5, 4000}, 3), 2);
  EXPECT_EQ(second->ReadTableBytes(), 0);
  EXPECT_EQ(second->copied_bytes, kTablesBytes);
  EXPECT_LT(second->restored_bytes, 10'000);
  EXPECT_EQ(Reasons(*second), (std::vector<std::string>{"", ""}));
  ExpectRight(*base);
  Unload(std::move(base));
  const auto third = WriteAndLoad("3", Changes({5, 17, 4199}, 9), 3);
  EXPECT_EQ(third->ReadTableBytes(), 0);
  EXPECT_EQ(third->kept_bytes, kTablesBytes);
  EXPECT_EQ(third->copied_bytes, 0);
  EXPECT_LT(third->restored_bytes, 10'000);
  EXPECT_EQ(Reasons(*third), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(third->tables[0].changed_row_count, 3);
  // No kernel has copied a table.
  EXPECT_LT(third->load.version->arena()->used_slab_bytes(), kTableBytes / 2);
  ExpectRight(*second);
  Unload(std::move(second));
  // The copy of the second version has changed rows to undo.
  const auto fourth = WriteAndLoad("4", Changes({1}, 4), 4);
  EXPECT_EQ(fourth->ReadTableBytes(), 0);
  ExpectRight(*third);
}

TEST_F(DeltaLoadTest, TheFirstDeltaCopiesWhatWasNotCopiedAhead) {
  // Each time after a new file. At the end the tables are copied, or a part of the first one is.
  for (const int piece_count : {2, 1000, 3}) {
    files_->NewBase(piece_count);
    const auto first = WriteAndLoad("first" + std::to_string(piece_count), Changes({7}, 3), 1);
    CopySomeAhead(piece_count);
    const auto pieces_bytes = static_cast<int64_t>(piece_count * memory::CopyAhead::kPieceBytes);
    const auto second =
        WriteAndLoad("second" + std::to_string(piece_count), Changes({5, 4000}, 4), 2);
    EXPECT_EQ(second->ReadTableBytes(), 0);
    EXPECT_EQ(second->kept_bytes, kTablesBytes);
    EXPECT_EQ(second->copied_bytes, std::max<int64_t>(0, kTablesBytes - pieces_bytes));
    ExpectRight(*first);
  }
}

TEST_F(DeltaLoadTest, AVersionKeptForARollbackIsAReader) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  auto second = WriteAndLoad("2", Changes({5}, 3), 2);
  const auto third = WriteAndLoad("3", Changes({5, 6}, 4), 3);
  EXPECT_EQ(third->ReadTableBytes(), 0);
  EXPECT_EQ(third->copied_bytes, kTablesBytes);
  ExpectRight(*base);
  ExpectRight(*second);
  Unload(std::move(base));
  const auto fourth = WriteAndLoad("4", Changes({6}, 5), 4);
  EXPECT_EQ(fourth->kept_bytes - fourth->copied_bytes, kTablesBytes);
  for (const auto* version : {second.get(), third.get(), fourth.get()}) ExpectRight(*version);
}

TEST_F(DeltaLoadTest, ATableThatNothingWritesIsShared) {
  UseWriter(DeltaFiles::Writer::kNone);
  auto first = WriteAndLoad("1", NoChanges(), 1);
  const int64_t held_count = store_->Statistics().held_count;
  EXPECT_EQ(held_count, DeltaFiles::kTableCount);
  const auto second = WriteAndLoad("2", NoChanges(), 2);
  EXPECT_EQ(second->kept_bytes, kTablesBytes);
  EXPECT_EQ(store_->Statistics().held_count, held_count);
  // The stock gather copies a table whose buffer two versions have.
  ExpectRight(*first);
  ExpectRight(*second);
  EXPECT_LT(second->load.version->arena()->used_slab_bytes(), kTableBytes / 2);
  EXPECT_EQ(second->load.version->overflow_block_count(), 0);
  EXPECT_TRUE(second->load.version->Seal().value());
  Unload(std::move(first));
  ExpectRight(*second);
}

TEST_F(DeltaLoadTest, AFileWithOneNameIsNoTable) {
  UseWriter(DeltaFiles::Writer::kNone);
  files_->WriteVersion(Path("1"), NoChanges(), 1);
  std::filesystem::remove(files_->TablesPath());
  const auto version = Load(Path("1"));
  EXPECT_TRUE(version->tables.empty());
  EXPECT_EQ(store_->Statistics().held_count, 0);
}

TEST_F(DeltaLoadTest, AnotherWriterOfTheInitOpIsReadInFull) {
  UseWriter(DeltaFiles::Writer::kAlsoAssigned);
  auto first = WriteAndLoad("1", Changes({3}, 7), 1);
  ASSERT_EQ(first->tables.size(), 2);
  // Table 1 is scattered into, and nothing else.
  EXPECT_EQ(first->tables[0].variable, "t1");
  EXPECT_EQ(first->tables[1].variable, "t0");
  EXPECT_NE(first->tables[1].reason.find("by another op"), std::string::npos);
  auto second = WriteAndLoad("2", Changes({3, 4}, 8), 2);
  Unload(std::move(first));
  const auto third = WriteAndLoad("3", Changes({9}, 8), 3);
  EXPECT_EQ(third->kept_bytes, kTableBytes);
  EXPECT_EQ(third->ReadTableBytes(), kTableBytes);
  ExpectRight(*second);
}

TEST_F(DeltaLoadTest, WritesOfRequestsKeepAVersionToItself) {
  UseWriter(DeltaFiles::Writer::kByRequests);
  const auto first = WriteAndLoad("1", Changes({3}, 7), 1);
  EXPECT_EQ(store_->Statistics().held_count, 0);
  EXPECT_EQ(first->ReadTableBytes(), kTablesBytes);
  EXPECT_NE(Reasons(*first)[0].find("requests may write"), std::string::npos);
  Answer(first->load.entry->servable(), "add", {});
  const auto second = WriteAndLoad("2", Changes({3}, 7), 1);
  ExpectRight(*second);
}

TEST_F(DeltaLoadTest, AReplacedShardIsReadInFull) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  auto second = WriteAndLoad("2", Changes({5}, 3), 2);
  Unload(std::move(base));
  // Another file with the same bytes is another file.
  files_->NewBase(1);
  const auto third = WriteAndLoad("3", Changes({5}, 3), 2);
  EXPECT_EQ(third->ReadTableBytes(), kTablesBytes);
  EXPECT_NE(Reasons(*third)[0].find("another file"), std::string::npos);
}

TEST_F(DeltaLoadTest, AShardReplacedWithinALoadIsReadInFull) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  auto second = WriteAndLoad("2", Changes({5}, 3), 2);
  Unload(std::move(base));
  files_->WriteVersion(Path("3"), Changes({5}, 4), 3);
  const auto load = Begin(Path("3"));
  const std::string shard = DeltaFiles::ShardOf(Path("3"), 0);
  std::filesystem::copy_file(shard, Path("copy"));
  std::filesystem::rename(Path("copy"), shard);
  ASSERT_TRUE(TakeSteps(load.get()).ok());
  EXPECT_EQ(load->kept_bytes(), 0);
  EXPECT_NE(load->Tables().value()[0].reason.find("replaced"), std::string::npos);
  auto finished = std::move(load->Finish(nullptr, nullptr, 1).value());
  EXPECT_TRUE(BitsOf(finished.entry->servable()) == BitsOfFullLoad(Path("3")));
  ExpectRight(*second);
}

TEST_F(DeltaLoadTest, ALoadThatFailsAtAnyStepLeavesTheNextOneRight) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  auto second = WriteAndLoad("2", Changes({5, 6}, 3), 2);
  Unload(std::move(base));
  files_->WriteVersion(Path("3"), Changes({7}, 4), 3);
  for (size_t count = 0; count <= kStepsAfterArena.size(); ++count) {
    SCOPED_TRACE(count);
    const auto load = Begin(Path("3"));
    ASSERT_TRUE(TakeSteps(load.get(), count).ok());
    EXPECT_EQ(load->Discard().live_bytes, 0);
    // A load that has restored has written, and each write can be undone.
    EXPECT_EQ(store_->Statistics().dirty_count, 0);
    auto next = Load(Path("3"));
    EXPECT_EQ(next->ReadTableBytes() + next->copied_bytes, 0);
    Unload(std::move(next));
    ExpectRight(*second);
  }
}

TEST_F(DeltaLoadTest, ACancelledLoadLeavesItsTablesToTheNext) {
  Unload(WriteAndLoad("1", NoChanges(), 1));
  files_->WriteVersion(Path("2"), Changes({7}, 4), 3);
  const auto load = Begin(Path("2"));
  ASSERT_TRUE(TakeSteps(load.get(), 2).ok());
  load->Cancel();
  EXPECT_EQ(load->RunInit().code(), Code::kCancelled);
  load->Discard();
  const auto second = Load(Path("2"));
  EXPECT_EQ(Reasons(*second), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(second->ReadTableBytes(), 0);
}

// The graph restores table 0 before the rows of table 1, each by an op of its own.
TEST_F(DeltaLoadTest, AWrongBitInALaterRestoreOpHarmsNoTable) {
  Unload(WriteAndLoad("1", Changes({5, 6}, 3), 1));
  files_->WriteVersion(Path("2"), Changes({7}, 4), 2);
  InvertByteOf("rows1", Path("2"));
  const auto load = Begin(Path("2"));
  EXPECT_EQ(TakeSteps(load.get()).code(), Code::kDataLoss);
  EXPECT_EQ(load->Discard().live_bytes, 0);
  EXPECT_EQ(store_->Statistics().dirty_count, 0);
  const auto third = WriteAndLoad("3", Changes({8}, 5), 3);
  EXPECT_EQ(third->ReadTableBytes(), 0);
}

TEST_F(DeltaLoadTest, ACancelledCopyLeavesItsSourceAlone) {
  const auto base = WriteAndLoad("1", Changes({5, 6}, 3), 1);
  files_->WriteVersion(Path("2"), Changes({7}, 4), 3);
  const auto load = Begin(Path("2"));
  load->Cancel();
  EXPECT_EQ(TakeSteps(load.get()).code(), Code::kCancelled);
  load->Discard();
  ExpectRight(*base);
  EXPECT_EQ(store_->Statistics().held_count, DeltaFiles::kTableCount);
  EXPECT_EQ(Load(Path("2"))->copied_bytes, kTablesBytes);
}

TEST_F(DeltaLoadTest, AModelThatIsRemovedGivesItsTablesBack) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  auto second = WriteAndLoad("2", Changes({5, 6}, 3), 2);
  Unload(std::move(base));
  EXPECT_EQ(store_->Statistics().standby_count, DeltaFiles::kTableCount);
  store_->Forget("m");
  EXPECT_EQ(store_->Statistics().standby_count, 0);
  Unload(std::move(second));
  EXPECT_EQ(store_->Statistics().held_count, 0);
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

TEST_F(DeltaLoadTest, ALeakedTensorKeepsItsTable) {
  auto base = WriteAndLoad("1", NoChanges(), 1);
  // The answer of "tables" is the table itself.
  const std::vector<Tensor> leaked = Answer(base->load.entry->servable(), "tables", {});
  const std::string bits(static_cast<const char*>(leaked[0].data()), leaked[0].TotalBytes());
  ASSERT_TRUE(base->load.entry->Destroy().ok());
  EXPECT_EQ(base->load.version->Free().live_bytes, kTablesBytes);
  auto second = WriteAndLoad("2", Changes({0, 5, 6}, 3), 2);
  const auto third = WriteAndLoad("3", Changes({0, 5, 6}, 4), 2);
  EXPECT_EQ(std::memcmp(leaked[0].data(), bits.data(), bits.size()), 0);
}

// The promise of the log's size holds for rows that are shorter than the ids.
TEST(LogBytesMax, HasRoomForTheIds) {
  PlannedTable table;
  table.bytes = 4'000'000;
  table.row_bytes = 4;
  table.is_written = true;
  TablePlan plan;
  plan.tables = {table};
  // 1,000 new rows.
  EXPECT_EQ(LoadedTables(plan).LogBytesMax(4'000), 12'000);
  // A quarter of the rows is as many as the log takes.
  EXPECT_EQ(LoadedTables(plan).LogBytesMax(4'000'000), 250'000 * 12);
  plan.tables[0].is_written = false;
  EXPECT_EQ(LoadedTables(plan).LogBytesMax(4'000), 0);
}

// Random sequences of bases, deltas, failed and cancelled loads, versions kept for a rollback,
// broken deltas and replaced shards.
class DeltaSequence : public DeltaLoadTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  int Below(int end) { return static_cast<int>(rng_() % static_cast<uint32_t>(end)); }
  std::vector<ChangedRows> RandomChanges() {
    std::vector<ChangedRows> changes(DeltaFiles::kTableCount);
    for (ChangedRows& changed : changes) {
      changed.value = static_cast<float>(Below(1000));
      changed.ids.resize(Below(4) == 0 ? 0 : Below(600));
      for (int64_t& id : changed.ids) id = Below(DeltaFiles::kRowCount);
    }
    return changes;
  }
  std::string WriteNext() {
    if (Below(8) == 0) files_->NewBase(Below(3));
    const std::string directory = Path("v" + std::to_string(++written_count_));
    files_->WriteVersion(directory, Below(8) == 0 ? NoChanges() : RandomChanges(),
                         static_cast<float>(Below(9)));
    return directory;
  }
  void LoadNext() {
    const std::string directory = WriteNext();
    const bool has_copy = std::any_of(versions_.begin(), versions_.end(), [&](const auto& version) {
      return version->tables_path == files_->TablesPath();
    });
    versions_.push_back(Load(directory));
    // No version here replaces so many rows that they cannot be undone.
    if (has_copy) EXPECT_EQ(versions_.back()->ReadTableBytes(), 0);
    // The version before the last one may be kept for a rollback.
    while (versions_.size() > static_cast<size_t>(1 + Below(3))) UnloadOne(0);
  }
  void FailNext() {
    const auto load = Begin(WriteNext());
    const auto step_count = static_cast<size_t>(Below(5));
    if (Below(3) == 0) {
      static_cast<void>(TakeSteps(load.get(), step_count));
      load->Cancel();
      static_cast<void>(load->Restore());
      static_cast<void>(load->RunInit());
    } else {
      static_cast<void>(TakeSteps(load.get(), step_count));
    }
    load->Discard();
  }
  // One of its shards is cut, or has a wrong bit.
  void BreakNext() {
    const std::string directory = WriteNext();
    const std::string shard = DeltaFiles::ShardOf(directory, Below(2));
    std::filesystem::copy_file(shard, Path("broken"));
    std::fstream file(Path("broken"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(Below(static_cast<int>(std::filesystem::file_size(shard))));
    file.put(static_cast<char>(Below(256)));
    file.close();
    std::filesystem::rename(Path("broken"), shard);
    const auto load = Begin(directory);
    const Status taken = TakeSteps(load.get());
    if (!taken.ok()) {
      EXPECT_EQ(taken.code(), Code::kDataLoss) << taken.message();
    }
    load->Discard();
  }
  void Rollback() {
    if (versions_.size() > 1) UnloadOne(versions_.size() - 1);
  }
  void UnloadOne(size_t index) {
    std::unique_ptr<Version> version = std::move(versions_[index]);
    versions_.erase(versions_.begin() + static_cast<std::ptrdiff_t>(index));
    ExpectRight(*version);
    Unload(std::move(version));
  }

  // Each version has an arena and its own tables, and nothing else but copies has memory.
  void ExpectExactSums() const {
    const memory::TableStatistics tables = store_->Statistics();
    const auto version_count = static_cast<int64_t>(versions_.size());
    EXPECT_EQ(tables.held_count, version_count * DeltaFiles::kTableCount);
    EXPECT_LE(tables.standby_bytes, kTablesBytes);
    EXPECT_EQ(pool_->Statistics().in_use_count, version_count + tables.held_count +
                                                    tables.standby_count +
                                                    (tables.copying_bytes > 0 ? 1 : 0));
  }

  std::mt19937 rng_{GetParam()};
  std::vector<std::unique_ptr<Version>> versions_;
  int written_count_ = 0;
};

TEST_P(DeltaSequence, AnswersHaveTheBitsOfAFullLoad) {
  int64_t kept_bytes = 0;
  for (int i = 0; i < 25 && !HasFailure(); ++i) {
    if (Below(2) == 0) CopySomeAhead(Below(16));
    switch (Below(9)) {
      case 0:
        FailNext();
        break;
      case 1:
        BreakNext();
        break;
      case 2:
        Rollback();
        break;
      default:
        LoadNext();
        kept_bytes += versions_.back()->kept_bytes;
    }
    for (const auto& version : versions_) ExpectRight(*version);
    ExpectExactSums();
  }
  EXPECT_GT(kept_bytes, 0);
  while (!versions_.empty()) UnloadOne(0);
  store_->Forget("m");
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeltaSequence, ::testing::Range(uint32_t{0}, uint32_t{12}));

}  // namespace
}  // namespace millpond::tf
