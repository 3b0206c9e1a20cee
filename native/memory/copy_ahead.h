#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/memory/table_choice.h"
#include "native/memory/table_claim.h"
#include "native/memory/table_store.h"

// Theory of operation.
//
// The problem. A load that writes rows copies the table that a version holds, if no table without a
// holder has its contents: after a start, or once a new file was read. So that the first of such
// loads need not, the keeper of the spare memory makes that copy before, piece by piece, while
// nothing loads. It takes a table without a holder if no version needs its contents, or the spare
// memory that the pool has kept for this. So it takes no memory that the load would not have taken.
// If the spare memory is not there after all, the copy is given up, and none is begun until a load
// ends.
//
// The keeper is a holder like a load. It claims the table that it fills, and holds the table that
// it copies, so both have their place among the tables of the store, and no load touches the one or
// writes to the other. The copy is on standby once it is complete, because its claim ends then.
// Before that, the end of the claim drops the table, and its memory goes to the pool. So whatever
// ends a copy need only end its claim.
// - A step of the keeper has three parts, as one of the pool has (slab_pool.h): it is begun and
//   ended under the store's mutex, and performed without it. Between the two no other thread
//   touches the copy: a thread that wants it gone marks it (is_given_up_), and the keeper ends it.
// - A load of the owner takes a wanted copy as it is between two steps, and copies the rest. Any
//   other load of the owner ends the copy, and takes its own memory from the pool.
// - A load waits kStepPatience for a step that is under way, and then goes on without the copy,
//   because the keeper has idle priority, and may be without a core for seconds. The store's mutex
//   is the exception: if the keeper loses its core while it begins or ends a step, all that need
//   the mutex wait for it, as for the pool's.
// - If no version holds the copied table any more, the copy is ended, because the next load may
//   write to that table itself.
namespace millpond::memory {

// Copies tables for the next loads, one at a time.
//
// Thread: the keeper; what the store calls, any. Owner: what owns the keeper's thread, which must
// have ended before this object is destroyed.
class CopyAhead final : public TableCopier {
 public:
  static constexpr size_t kPieceBytes = 256 << 10;

  // The only one of its store.
  explicit CopyAhead(std::shared_ptr<TableStore> store);
  // Ends the copy that is under way.
  ~CopyAhead() override;
  CopyAhead(const CopyAhead&) = delete;
  CopyAhead& operator=(const CopyAhead&) = delete;

  // Copies the next piece, and returns how long to rest before the next one (ns). Returns nullopt
  // if nothing is to be copied, until the pool has work again.
  std::optional<int64_t> Step();
  // The parts of Step, for tests of what happens in the middle. The second and the third one only
  // if the first returns true.
  bool BeginStep();
  void PerformStep();
  int64_t EndStep();

 private:
  bool IsSteppingFor(const std::string& owner) const override {
    return is_stepping_ && copied_->wish.owner == owner;
  }
  std::unique_ptr<TableClaim> TakeOver(const TableWish& wish, size_t row_bytes,
                                       uint64_t load) override;
  void GiveUpUnlessWished(const std::string& owner, const std::vector<TableWish>& wishes) override;
  std::unique_ptr<TableClaim> TakeUnwanted() override;
  void TryAgain() override { has_failed_ = false; }

  // The table that is copied, and by whom it is wished for.
  struct Copied {
    TableWish wish;
    size_t row_bytes = 0;
    int64_t rest_ns = 0;
    TableClaim::Claimed claimed;  // until the first step makes the claim of it
  };

  bool ChooseNext();  // Needs the mutex.
  bool IsWanted() const;
  bool MakeClaim();
  bool HasMemory(const StoredTable& table) const;

  const std::shared_ptr<TableStore> store_;
  // All under the store's mutex, or in the middle of a step the keeper's alone.
  std::unique_ptr<Copied> copied_;  // null if no copy is under way
  std::unique_ptr<TableClaim> claim_;
  bool is_stepping_ = false;
  bool is_given_up_ = false;
  bool has_failed_ = false;  // nothing is copied until TryAgain
};

}  // namespace millpond::memory
