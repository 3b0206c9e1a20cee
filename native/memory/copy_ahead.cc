#include "native/memory/copy_ahead.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace millpond::memory {
namespace {

// A copy takes ten seconds, as a restore beside requests does. It is never slower than what
// requests do not notice, and never so fast that it takes much of the memory's bandwidth.
constexpr size_t kCopySeconds = 10;
constexpr size_t kBytesPerSecondMin = 250'000'000;
constexpr size_t kBytesPerSecondMax = 1'000'000'000;
// Undoing so many rows takes about as long as copying a piece.
constexpr size_t kUndoneRowCount = 1024;
// The share of a copy that may be without memory: the pool counts what a version has left untouched
// as memory that is there.
constexpr size_t kShortShare = 8;

int64_t RestNs(size_t written_bytes) {
  const size_t pace =
      std::clamp(written_bytes / kCopySeconds, kBytesPerSecondMin, kBytesPerSecondMax);
  return static_cast<int64_t>(CopyAhead::kPieceBytes * 1'000'000'000 / pace);
}

}  // namespace

CopyAhead::CopyAhead(std::shared_ptr<TableStore> store) : store_(std::move(store)) {
  const std::lock_guard lock(store_->mutex_);
  store_->copier_ = this;
}

CopyAhead::~CopyAhead() {
  {
    const std::lock_guard lock(store_->mutex_);
    store_->copier_ = nullptr;
  }
  claim_ = nullptr;
}

std::optional<int64_t> CopyAhead::Step() {
  if (!BeginStep()) return std::nullopt;
  PerformStep();
  return EndStep();
}

// Begins a step of the copy that is under way, or of the next one.
bool CopyAhead::BeginStep() {
  const std::lock_guard lock(store_->mutex_);
  if (!store_->loads_.empty()) return false;
  if (copied_ == nullptr && !ChooseNext()) return false;
  is_stepping_ = true;
  return true;
}

// Chooses the next copy. Returns false if nothing is to be copied.
bool CopyAhead::ChooseNext() {
  if (has_failed_) return false;
  const std::optional<TableChoice> choice =
      ChooseCopyAhead(store_->States(), store_->RoomForCopies());
  if (!choice) return false;
  const StoredTable& source = *store_->tables_[*choice->source];
  const TableState& state = source.state;
  copied_ = std::make_unique<Copied>();
  Copied& copied = *copied_;
  copied.wish = {state.owner, state.contents, state.bytes, /*is_written=*/true};
  copied.row_bytes = source.row_bytes;
  copied.rest_ns = RestNs(store_->versions_.at(state.owner).written_slab_bytes);
  copied.claimed = store_->Hold(*choice, /*is_written=*/true, {state.load, /*is_keeper=*/true});
  is_given_up_ = false;
  return true;
}

void CopyAhead::PerformStep() {
  if (claim_ == nullptr && !MakeClaim()) return;
  if (claim_->bytes_to_fill() > 0) {
    claim_->CopyNext(kPieceBytes);
  } else {
    claim_->UndoRows(kUndoneRowCount);
  }
}

// Makes the claim of a copy in its first step. Returns false if the system refuses its memory, or
// if the spares have it no more: a load may have taken it since the choice.
bool CopyAhead::MakeClaim() {
  TableClaim::Claimed claimed = std::move(copied_->claimed);
  if (claimed.table == nullptr) {
    auto made = store_->MakeTable(copied_->wish, copied_->row_bytes);
    if (!made.ok()) return false;
    if (!HasMemory(*made.value())) {
      store_->pool_->GiveBack(std::move(made.value()->slab));
      return false;
    }
    const std::lock_guard lock(store_->mutex_);
    const TableHolder keeper{claimed.source->state.load, /*is_keeper=*/true};
    store_->Shelve(std::move(made.value()), keeper, &claimed);
    store_->TellNeed(copied_->wish.owner);
  }
  Slab& slab = *claimed.table->slab;
  if (slab.is_sealed() && !slab.Unseal().ok()) return false;
  claim_.reset(new TableClaim(store_, std::move(claimed), copied_->wish, copied_->row_bytes));
  claim_->BeginOverwrite();
  return true;
}

bool CopyAhead::HasMemory(const StoredTable& table) const {
  const size_t bytes = table.state.bytes;
  return bytes - std::min(bytes, table.slab->ResidentBytes()) <= bytes / kShortShare;
}

int64_t CopyAhead::EndStep() {
  const int64_t rest_ns = copied_->rest_ns;
  const bool has_failed = claim_ == nullptr;
  const bool is_complete =
      !has_failed && claim_->bytes_to_fill() + claim_->changed_row_count() == 0;
  if (is_complete) {
    claim_->EndOverwrite();
    claim_ = nullptr;  // The table is on standby.
  }
  std::unique_ptr<TableClaim> unwanted;
  {
    const std::lock_guard lock(store_->mutex_);
    is_stepping_ = false;
    if (is_complete) {
      copied_ = nullptr;
    } else if (has_failed) {
      // The end of a copy wakes the keeper, which would begin it again.
      has_failed_ = has_failed_ || IsWanted();
      copied_ = nullptr;
    } else {
      unwanted = TakeUnwanted();
    }
  }
  store_->stepped_.notify_all();
  return rest_ns;
}

std::unique_ptr<TableClaim> CopyAhead::TakeOver(const TableWish& wish, size_t row_bytes,
                                                uint64_t load) {
  if (copied_ == nullptr || !wish.is_written) return nullptr;
  const TableWish& begun = copied_->wish;
  if (std::tie(begun.owner, begun.contents, begun.bytes, copied_->row_bytes) !=
      std::tie(wish.owner, wish.contents, wish.bytes, row_bytes)) {
    return nullptr;
  }
  if (is_stepping_) {
    is_given_up_ = true;
    return nullptr;
  }
  copied_ = nullptr;
  TableStore::HandOver(claim_->hold_.get(), load);
  TableStore::HandOver(claim_->source_hold_.get(), load);
  return std::move(claim_);
}

void CopyAhead::GiveUpUnlessWished(const std::string& owner, const std::vector<TableWish>& wishes) {
  if (copied_ == nullptr || copied_->wish.owner != owner) return;
  is_given_up_ =
      is_given_up_ || std::none_of(wishes.begin(), wishes.end(), [this](const TableWish& wish) {
        return wish.is_written && wish.contents == copied_->wish.contents;
      });
}

std::unique_ptr<TableClaim> CopyAhead::TakeUnwanted() {
  if (copied_ == nullptr || is_stepping_ || IsWanted()) return nullptr;
  copied_ = nullptr;
  return std::move(claim_);
}

// Returns false if the copy is of no use any more: it was given up, its owner is gone, or another
// table without a version has the contents, as the copied one has once its versions are gone.
bool CopyAhead::IsWanted() const {
  const TableWish& wish = copied_->wish;
  const auto has_same = [&wish](const auto& table) {
    return !table->has_version() && table->state.owner == wish.owner &&
           table->state.contents == wish.contents && table->state.bytes == wish.bytes;
  };
  return !is_given_up_ && store_->versions_.count(wish.owner) > 0 &&
         std::none_of(store_->tables_.begin(), store_->tables_.end(), has_same);
}

}  // namespace millpond::memory
