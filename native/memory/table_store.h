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
#include "native/memory/table_claim.h"

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
// claimed    -          the end of a copy ahead before it is complete: the slab goes to the pool
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
// Copies ahead. The keeper of the spare memory makes the copy that the first of such loads would
// make, before it comes (copy_ahead.h). As long as it does, it is a holder of both tables, as that
// load would be. Only the statistics tell it apart: a table that the keeper alone holds is no
// version's.
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

// The keeper's copies ahead, as the store sees them (CopyAhead). All under the store's mutex.
class TableCopier {
 public:
  // How long a load waits for the piece that is under way. A piece takes a tenth of a millisecond
  // of a core. A keeper that takes a hundred times as long has none.
  static constexpr std::chrono::milliseconds kStepPatience{10};

  virtual ~TableCopier() = default;
  // True in the middle of a step of the owner's copy.
  virtual bool IsSteppingFor(const std::string& owner) const = 0;
  // Makes the copy that is under way the load's, if the load would begin the same one. Returns null
  // if not, or in the middle of a step, when the copy is the keeper's.
  virtual std::unique_ptr<TableClaim> TakeOver(const TableWish& wish, size_t row_bytes,
                                               uint64_t load) = 0;
  // Gives up the owner's copy, unless a load that wants `wishes` would take it over.
  virtual void GiveUpUnlessWished(const std::string& owner,
                                  const std::vector<TableWish>& wishes) = 0;
  // Takes the copy away if it is of no use any more, unless the keeper is at it, and will end it.
  // The result is to be destroyed without the mutex.
  virtual std::unique_ptr<TableClaim> TakeUnwanted() = 0;
  // Something has changed since a copy failed for lack of memory.
  virtual void TryAgain() = 0;
};

struct TableStatistics {
  int64_t held_count = 0;
  int64_t held_bytes = 0;
  int64_t standby_count = 0;  // without a holder; the dirty ones too
  int64_t standby_bytes = 0;
  int64_t dirty_count = 0;
  // The table that the keeper fills with a copy, in no other number.
  int64_t copying_bytes = 0;
};

// The tables of all models. Thread: any. Owner: shared by its users. It borrows no version.
class TableStore final : public TableHome, public std::enable_shared_from_this<TableStore> {
 public:
  // `kept_count`: see Memory above.
  TableStore(std::shared_ptr<SlabPool> pool, int kept_count);
  // All tables go to the pool.
  ~TableStore() override;
  TableStore(const TableStore&) = delete;
  TableStore& operator=(const TableStore&) = delete;

  // A load that is under way: its number, which orders the loads by their begin. Keeps the load's
  // memory from being used for copies ahead, and the tables that it wants from being dropped for
  // their size.
  using LoadPermit = std::shared_ptr<const uint64_t>;
  // Stops copies ahead as long as the permit lives, for a load that wants `wishes`. Gives memory
  // without a holder to the pool, as far as the owner's loads cannot use it as a table. Waits
  // TableCopier::kStepPatience at most for a piece of the owner's that is under way. A load that
  // fails ends its permit after its claims.
  [[nodiscard]] LoadPermit BeginLoad(const std::string& owner,
                                     const std::vector<TableWish>& wishes);

  // Gets a table for the load of `permit`. `row_bytes` divides the wish's bytes. Returns
  // RESOURCE_EXHAUSTED if the system has no addresses. May wait for the pool, for milliseconds.
  base::StatusOr<std::unique_ptr<TableClaim>> Claim(const TableWish& wish, size_t row_bytes,
                                                    const LoadPermit& permit);

  // Returns true if Claim would share a table at this moment.
  bool WouldShare(const TableWish& wish) const;

  // Records the tables of the owner's version that was loaded last.
  void Expect(const std::string& owner, const VersionTables& tables);
  // Forgets an owner that is gone.
  void Forget(const std::string& owner);

  // Makes the tables of some holds read-only until a load claims them.
  base::Status Seal(const std::vector<const TableClaim*>& claims);

  TableStatistics Statistics() const;
  // The bytes in memory of the owner's tables that no load and no version holds. They are for the
  // owner's next version alone. A table with contents has all its memory, another one only what a
  // load or the keeper has written by now: that is measured, at the cost of Slab::ResidentBytes.
  size_t FreeBytes(const std::string& owner) const;

 private:
  friend class CopyAhead;
  using Slabs = std::vector<std::unique_ptr<Slab>>;
  using Lock = std::unique_lock<std::mutex>;

  base::StatusOr<std::unique_ptr<StoredTable>> MakeTable(const TableWish& wish, size_t row_bytes);
  void Release(StoredTable* table, const TableHolder& holder) override;
  void SetContents(StoredTable* table, const std::string& contents) override;
  std::shared_ptr<PagePinner> pinner() const override { return pool_->pinner(); }
  void EndLoad(const std::string& owner, uint64_t load);
  void GiveBack(Slabs slabs);

  // Need the mutex.
  std::vector<TableState> States() const;
  TableChoice ChooseWritable(const TableWish& wish, Slabs* unusable);
  TableClaim::Claimed Hold(const TableChoice& choice, bool is_written, const TableHolder& holder);
  void Shelve(std::unique_ptr<StoredTable> made, const TableHolder& holder,
              TableClaim::Claimed* claimed);
  std::shared_ptr<TableHold> HoldFor(StoredTable* table, const TableHolder& holder);
  static void HandOver(TableHold* hold, uint64_t load);
  std::unique_ptr<Slab> Remove(const StoredTable* table);
  std::unique_ptr<Slab> Remove(size_t index);
  void Remove(std::vector<size_t> indices, Slabs* removed);
  void RemoveSurplus(Slabs* removed);
  size_t VersionBytesMax() const;
  void TellNeed(const std::string& owner);
  std::map<std::string, size_t> SlabBytesByOwner() const;
  std::map<std::string, size_t> RoomForCopies() const;
  std::unique_ptr<TableClaim> TakeUnwantedCopy();

  const std::shared_ptr<SlabPool> pool_;
  const size_t kept_count_;
  mutable std::mutex mutex_;         // before the pool's
  std::condition_variable stepped_;  // the keeper has ended a step of a copy ahead
  std::vector<std::unique_ptr<StoredTable>> tables_;
  TableCopier* copier_ = nullptr;  // that lives at present
  // The sizes that the loads under way want, by owner and load.
  std::map<std::string, std::map<uint64_t, std::set<size_t>>> loads_;
  uint64_t load_count_ = 0;
  std::map<std::string, VersionTables> versions_;  // by owner
  uint64_t release_count_ = 0;
};

}  // namespace millpond::memory
