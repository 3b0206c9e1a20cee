#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/memory/slab.h"
#include "native/memory/slab_pool.h"
#include "native/memory/table_choice.h"

// Theory of operation.
//
// The problem. A version may be a delta: the large tables of its checkpoint are the same file as
// those of the version before, and its init op writes over some rows (docs/memory.md). Reading the
// tables again costs seconds, and the bytes are in memory already. So tables live longer than a
// version: each has a slab of its own, beside the version's arena.
//
// The contents. A table's bytes are known as the identity of what was read and verified (a file,
// a place in it, a checksum), and a log of the rows that were written over since. The log has the
// old bytes of each row, so undoing it takes time for the changed rows alone, reads no file, and
// gives the verified bytes again. A load that finds no table without a holder copies one that
// versions hold, and undoes the rows in the copy.
//
// The states of a table. It follows from the holders and the contents:
// - Live: versions hold it, and no load writes to it.
// - Claimed: one load holds it, and may write. Its contents are unknown to all others.
// - Standby: it has no holder, and its contents are known.
// - Dirty: it has no holder, and its contents are unknown. Only its memory is of use.
//
// From       To         By
// -          claimed    Claim, with a slab of the pool
// standby    live       Claim for kShare
// standby    claimed    Claim for kUndo or kOverwrite
// dirty      claimed    Claim for kOverwrite
// claimed    live       Commit, at the end of the load
// claimed    standby    the end of a load whose writes to it, if any, are in the log
// claimed    dirty      the end of a load in the middle of another write
// live       standby    the end of the last holder
// standby    -          the limit of what is kept, Forget, or a size of no use: the slab goes to
//                       the pool
// dirty      -          the same
//
// So a load that fails in the middle leaves a table whose contents are known for sure, or a dirty
// one. The contents are taken away when the load gets the table, before its first write. They come
// back when the load has ended, if each write since is in the log. This does not depend on what the
// load did first, so a graph with several restore ops needs no order among them. And no table is
// written to while another version reads it: a table gets its contents when the writer has ended,
// only a table with contents is shared, and only a table without a holder is claimed for writing.
//
// Copies ahead. A load that writes rows copies the table that a version holds, if no table without
// a holder has its contents: after a start, or once a new file was read. So that the first of such
// loads need not, the keeper of the spare memory makes that copy before, piece by piece, while
// nothing loads (CopyAhead). It takes a table without a holder if no version needs its contents, or
// the spare memory that the pool has kept for this. So it takes no memory that the load would not
// have taken. If the spare memory is not there after all, the copy is given up, and none is begun
// until a load ends.
// - As long as it is copied, the table is none of the store's tables, so no load sees it. It is on
//   standby once it is complete.
// - A step of the keeper has three parts, as one of the pool has (slab_pool.h): it is begun and
//   ended under the mutex, and performed without it. Between the two no other thread touches the
//   copy: a thread that wants it gone marks it (is_given_up), and the keeper ends it.
// - A load of the owner takes a wanted copy as it is between two steps, and copies the rest. Any
//   other load of the owner ends the copy, and the memory goes to the pool, from which it takes its
//   own. The same goes for tables on standby that it cannot use.
// - A load waits kStepPatience for a step that is under way, and then goes on without the copy,
//   because the keeper has idle priority, and may be without a core for seconds. The store's mutex
//   is the exception: if the keeper loses its core while it begins or ends a step, all that need
//   the mutex wait for it, as for the pool's.
// - The keeper holds the table that it copies, as a load does. If no other holder is left, the copy
//   is ended, because the next load may write to the table itself.
//
// Memory. A table is charged to its owner, a model. Tables without a holder have at most kept_count
// times the bytes of the largest version's tables. What is more goes back to the pool, and so does
// each table of an owner that is forgotten, once it has no holder, and one of a size that the owner
// needs no more (ChooseUseless). What a version leaves is needed until another version that was
// loaded after it is there: while its tables are freed one by one, none is measured by the rest,
// and a load that fails drops nothing that the next one wants. The pool is told to keep memory for
// the written tables of the next version only as far as there is no copy of them besides those of
// the versions that the owner serves at rest, and none that is under way. It is told under the
// mutex, so that what it knows is what was true last. The log lies behind the table in its slab,
// for a quarter of the rows. It has memory as far as it is used.
//
// A leak. A tensor that is held beyond its version's end keeps its table live for ever, so its
// memory is never written to. The version reports it (ArenaRemains).
namespace millpond::memory {

class TableStore;

// The tables of one version.
struct VersionTables {
  size_t bytes = 0;
  // In whole units of the slabs, without the logs: of all tables, and of those that the init op
  // writes to.
  size_t slab_bytes = 0;
  size_t written_slab_bytes = 0;
  size_t log_bytes_max = 0;  // the addresses of the logs
  int serving_count = 1;     // versions that the owner serves at rest

  void Add(size_t table_bytes, size_t row_bytes, bool is_written);
};

struct TableStatistics {
  int64_t held_count = 0;
  int64_t held_bytes = 0;
  int64_t standby_count = 0;  // without a holder; the dirty ones too
  int64_t standby_bytes = 0;
  int64_t dirty_count = 0;
  int64_t copying_bytes = 0;  // of a table that is being copied ahead; in no other number
};

// A table, in the store alone.
struct StoredTable {
  TableState state;
  std::unique_ptr<Slab> slab;
  size_t row_bytes = 0;
  // The entries that the log may have, and those that it has. Each is an id and the old row.
  size_t log_capacity = 0;
  size_t log_count = 0;
  std::multiset<uint64_t> loads;  // of the holders
  uint64_t newest_load = 0;       // that ever held it

  void AddHolder(uint64_t load);
  void RemoveHolder(uint64_t load);
};

// Keeps a table from being written to. Any thread may end it.
class TableHold {
 public:
  TableHold(std::shared_ptr<TableStore> store, StoredTable* table, uint64_t load)
      : store_(std::move(store)), table_(table), load_(load) {}
  ~TableHold();
  TableHold(const TableHold&) = delete;
  TableHold& operator=(const TableHold&) = delete;

 private:
  friend class TableStore;

  const std::shared_ptr<TableStore> store_;
  StoredTable* const table_;
  uint64_t load_;  // of the version that holds it; under the store's mutex
};

// The table of one load, until the load ends. Thread: the loader.
class TableClaim {
 public:
  ~TableClaim();
  TableClaim(const TableClaim&) = delete;
  TableClaim& operator=(const TableClaim&) = delete;

  TableUse use() const { return choice_.use; }
  ReadReason reason() const { return choice_.reason; }
  std::byte* data() const { return table_->slab->start(); }
  size_t bytes() const { return bytes_; }
  // True if this load may write to the table.
  bool is_writable() const { return choice_.use != TableUse::kShare; }
  // True if the bytes are in the table already, but for the changed rows.
  bool is_in_place() const { return use() == TableUse::kShare || use() == TableUse::kUndo; }
  // True if the rows come from another table, which stays as it is until EndOverwrite.
  bool copies() const { return source_ != nullptr; }
  // The bytes that are to be read, or copied from the other table.
  size_t bytes_to_fill() const { return is_in_place() ? 0 : bytes_ - copied_bytes_; }
  // The bytes of the table that need no fresh memory.
  size_t resident_bytes() const { return resident_bytes_; }
  // The table stays as it is as long as this lives, or what has a copy of it.
  std::shared_ptr<const TableHold> hold() const { return hold_; }

  // Declares that the whole table will be written, before its first byte is: from now on the table
  // has the rows of this load, and an empty log. Its contents are unknown until EndOverwrite.
  void BeginOverwrite();
  // Copies the next `count` bytes of the other table, or all that are left. Returns how many these
  // are. After BeginOverwrite.
  size_t CopyNext(size_t count);
  // Declares that the table has the bytes that were wished for: they were read and verified, or
  // copied and undone. Lets go of the other table.
  void EndOverwrite();
  // The rows that are not undone yet.
  size_t changed_row_count() const { return copies() ? source_rows_left_ : table_->log_count; }
  // Undoes the last `count` changes, or all that are left. The log may be of a load that read the
  // same bytes as rows of another size.
  void UndoRows(size_t count);
  // Declares that the rows `ids` will be written, and keeps their bytes. Ids that are out of range
  // are left out, because no kernel writes to them. Returns false if the log has no room: Commit
  // then leaves the contents unknown.
  template <typename Id>
  bool LogRows(const Id* ids, size_t count);
  // Declares that the table will be written in a way that cannot be undone.
  void LoseContents();
  // The identity of the bytes that the load wants, but for the rows that were written over.
  const std::string& contents() const { return contents_; }
  // The rows whose bytes are not those of contents(), ascending and each once. Returns nullopt as
  // long as other bytes may differ too.
  std::optional<std::vector<int64_t>> ChangedRows() const;
  // Pins the table for devices that copy from it, if the pool pins any memory (SlabPool::PinWith).
  // For a writable table, because only this load has it. Takes long if it is not pinned yet.
  void Pin();
  // Ends the writing: the contents are known as what was wished for, and the logged rows. The end
  // of the claim does the same.
  void Commit();

 private:
  friend class TableStore;

  // A table that the store has chosen, and its contents, which it has no more.
  struct Claimed {
    StoredTable* table = nullptr;
    TableChoice choice;
    uint64_t load = 0;
    std::string former_contents;
    const StoredTable* source = nullptr;  // has one holder more for the claim
    std::shared_ptr<const TableHold> source_hold;
  };

  TableClaim(std::shared_ptr<TableStore> store, Claimed claimed, const TableWish& wish,
             size_t row_bytes);

  // Begins an empty log of the rows of this load.
  void BeginLog();
  // Gives the place of an entry in the log of `table`.
  std::byte* EntryOf(const StoredTable& table, size_t index) const;
  static size_t EntryBytes(size_t row_bytes) { return sizeof(int64_t) + row_bytes; }

  const std::shared_ptr<TableStore> store_;
  StoredTable* const table_;
  const TableChoice choice_;
  const std::string contents_;  // that the load wants
  const size_t bytes_;
  const size_t row_bytes_;
  const size_t row_count_;
  const std::string former_contents_;  // to be put back if nothing is written
  size_t resident_bytes_ = 0;
  bool has_written_ = false;
  bool is_overwriting_ = false;
  bool has_lost_contents_ = false;
  std::shared_ptr<TableHold> hold_;
  const StoredTable* source_;  // null if there is none
  size_t copied_bytes_ = 0;
  size_t source_rows_left_;  // of its changed rows, not undone yet in the copy
  std::shared_ptr<const TableHold> source_hold_;
};

// The tables of all models. Thread: any. Owner: shared by its users. It borrows no version.
class TableStore : public std::enable_shared_from_this<TableStore> {
 public:
  // `kept_count`: see Memory above.
  TableStore(std::shared_ptr<SlabPool> pool, int kept_count);
  // All tables go to the pool.
  ~TableStore();
  TableStore(const TableStore&) = delete;
  TableStore& operator=(const TableStore&) = delete;

  // A load that is under way: its number, which orders the loads by their begin. Keeps the load's
  // memory from being used for copies ahead, and the tables that it wants from being dropped for
  // their size.
  using LoadPermit = std::shared_ptr<const uint64_t>;
  // Stops copies ahead as long as the permit lives, for a load that wants `wishes`. Gives memory
  // without a holder to the pool, as far as the owner's loads cannot use it as a table. Waits
  // kStepPatience at most for a piece of the owner's that is under way. A load that fails ends its
  // permit after its claims.
  [[nodiscard]] LoadPermit BeginLoad(const std::string& owner,
                                     const std::vector<TableWish>& wishes);

  // Gets a table for the load of `permit`. `row_bytes` divides the wish's bytes. Returns
  // RESOURCE_EXHAUSTED if the system has no addresses. May wait for the pool, for milliseconds.
  base::StatusOr<std::unique_ptr<TableClaim>> Claim(const TableWish& wish, size_t row_bytes,
                                                    const LoadPermit& permit);

  // Returns the memory that the log of a table may take.
  static size_t LogBytesMax(size_t bytes, size_t row_bytes);

  // Returns true if Claim would share a table at this moment.
  bool WouldShare(const TableWish& wish) const;

  static constexpr size_t kCopyPieceBytes = 256 << 10;
  // A piece takes a tenth of a millisecond of a core. A keeper that takes a hundred times as long
  // has none.
  static constexpr std::chrono::milliseconds kStepPatience{10};
  // Copies the next piece of a table ahead, and returns how long to rest before the next piece.
  // Returns nullopt if nothing is to be copied, until the pool has work again. Only the keeper.
  std::optional<int64_t> CopyAhead();
  // The parts of CopyAhead, for tests of what happens in the middle of a step. The second and the
  // third one only if the first returns true.
  bool BeginCopyStep();
  void PerformCopyStep();
  std::optional<int64_t> EndCopyStep();
  // Ends the copy that is under way, and begins no other one. Once the keeper has stopped, and
  // before the store is let go of.
  void StopCopyingAhead();

  // Records the tables of the owner's version that was loaded last.
  void Expect(const std::string& owner, const VersionTables& tables);
  // Forgets an owner that is gone.
  void Forget(const std::string& owner);

  // Makes the tables of some holds read-only until a load claims them.
  base::Status Seal(const std::vector<const TableClaim*>& claims);

  TableStatistics Statistics() const;

 private:
  friend class TableClaim;
  friend class TableHold;
  using Slabs = std::vector<std::unique_ptr<Slab>>;
  using Lock = std::unique_lock<std::mutex>;

  // A copy ahead that is under way. Its members die in reverse: the claim before its table.
  struct TableCopy {
    TableWish wish;
    size_t row_bytes = 0;
    int64_t rest_ns = 0;
    const StoredTable* source = nullptr;
    TableClaim::Claimed claimed;  // until the first step makes the claim of it
    std::unique_ptr<StoredTable> table;
    std::unique_ptr<TableClaim> claim;
    bool has_memory = false;
    bool is_given_up = false;
    bool is_stepping = false;  // the keeper is at it, without the mutex
  };

  base::StatusOr<std::unique_ptr<StoredTable>> MakeTable(const TableWish& wish, size_t row_bytes,
                                                         uint64_t load);
  void Release(StoredTable* table, uint64_t load);
  void EndLoad(const std::string& owner, uint64_t load);
  void GiveBack(Slabs slabs);
  bool MakeClaim(TableCopy* copy);
  int64_t FinishCopy();
  void EndCopy(std::unique_ptr<TableCopy> copy);

  // Need the mutex.
  std::vector<TableState> States() const;
  TableChoice ChooseWritable(const TableWish& wish, Slabs* unusable);
  TableClaim::Claimed Hold(const TableChoice& choice, bool is_written, uint64_t load);
  std::unique_ptr<Slab> Remove(size_t index);
  void Remove(std::vector<size_t> indices, Slabs* removed);
  Slabs RemoveSurplus();
  size_t VersionBytesMax() const;
  void TellNeed(const std::string& owner);
  std::map<std::string, size_t> SlabBytesByOwner() const;
  std::map<std::string, size_t> RoomForCopies() const;
  std::unique_ptr<TableCopy> BeginCopy();
  std::unique_ptr<TableClaim> TakeOverCopy(const TableWish& wish, size_t row_bytes,
                                           const TableChoice& choice, uint64_t load);
  bool IsWanted(const TableCopy& copy) const;
  std::unique_ptr<TableCopy> TakeUnwantedCopy();

  const std::shared_ptr<SlabPool> pool_;
  const size_t kept_count_;
  mutable std::mutex mutex_;         // before the pool's
  std::condition_variable stepped_;  // the keeper has ended a step of a copy ahead
  std::vector<std::unique_ptr<StoredTable>> tables_;
  std::unique_ptr<TableCopy> copy_;  // wanted, or the keeper is at it
  bool has_stopped_copying_ = false;
  bool has_failed_to_copy_ = false;  // nothing is copied until a load ends, or Expect
  // The sizes that the loads under way want, by owner and load.
  std::map<std::string, std::map<uint64_t, std::set<size_t>>> loads_;
  uint64_t load_count_ = 0;
  std::map<std::string, VersionTables> versions_;  // by owner
  uint64_t release_count_ = 0;
};

template <typename Id>
bool TableClaim::LogRows(const Id* ids, size_t count) {
  constexpr size_t kRowsAhead = 16;
  has_written_ = true;
  if (table_->log_count == 0) BeginLog();
  for (size_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) {
      const auto ahead = static_cast<uint64_t>(static_cast<int64_t>(ids[i + kRowsAhead]));
      if (ahead < row_count_) __builtin_prefetch(data() + ahead * table_->row_bytes);
    }
    const auto id = static_cast<int64_t>(ids[i]);
    if (static_cast<uint64_t>(id) >= row_count_) continue;
    if (table_->log_count == table_->log_capacity) {
      has_lost_contents_ = true;
      return false;
    }
    std::byte* const entry = EntryOf(*table_, table_->log_count++);
    std::memcpy(entry, &id, sizeof(id));
    std::memcpy(entry + sizeof(id), data() + static_cast<size_t>(id) * table_->row_bytes,
                table_->row_bytes);
  }
  return true;
}

}  // namespace millpond::memory
