#include "native/memory/table_store.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

namespace millpond::memory {
namespace {

// A log that is longer costs more than reading the table.
constexpr size_t kLoggedRowsShare = 4;

// A copy ahead takes ten seconds, as a restore beside requests does. It is never slower than what
// requests do not notice, and never so fast that it takes much of the memory's bandwidth.
constexpr size_t kAheadSeconds = 10;
constexpr size_t kAheadBytesPerSecondMin = 250'000'000;
constexpr size_t kAheadBytesPerSecondMax = 1'000'000'000;
// A load waits for one piece at most: a tenth of a millisecond's work.
constexpr size_t kAheadPieceBytes = TableStore::kAheadPieceBytes;
constexpr size_t kAheadRowCount = 1024;

int64_t AheadRestNs(size_t written_bytes) {
  const size_t pace =
      std::clamp(written_bytes / kAheadSeconds, kAheadBytesPerSecondMin, kAheadBytesPerSecondMax);
  return static_cast<int64_t>(kAheadPieceBytes * 1'000'000'000 / pace);
}

// The pool's name for the written tables of a model. No model has a line feed in its name.
std::string WrittenOwner(const std::string& owner) { return owner + "\nwritten tables"; }
std::string ReadOwner(const std::string& owner) { return owner + "\ntables"; }

size_t LogCapacity(size_t bytes, size_t row_bytes) { return bytes / row_bytes / kLoggedRowsShare; }

// The table begins the slab, and the log begins at the next unit.
size_t LogOffset(size_t bytes) { return RoundUp(bytes, kSlabUnitBytes); }

size_t TableSlabBytes(size_t bytes, size_t row_bytes) {
  return LogOffset(bytes) + RoundUp(TableStore::LogBytesMax(bytes, row_bytes), kSlabUnitBytes);
}

}  // namespace

void VersionTables::Add(size_t table_bytes, size_t row_bytes, bool is_written) {
  bytes += table_bytes;
  slab_bytes += LogOffset(table_bytes);
  if (!is_written) return;
  written_slab_bytes += LogOffset(table_bytes);
  log_bytes_max += TableSlabBytes(table_bytes, row_bytes) - LogOffset(table_bytes);
}

TableHold::~TableHold() { store_->Release(table_); }

TableClaim::TableClaim(std::shared_ptr<TableStore> store, Claimed claimed, const TableWish& wish,
                       size_t row_bytes)
    : store_(std::move(store)),
      table_(claimed.table),
      choice_(claimed.choice),
      contents_(wish.contents),
      bytes_(wish.bytes),
      row_bytes_(row_bytes),
      row_count_(wish.bytes / row_bytes),
      former_contents_(std::move(claimed.former_contents)),
      hold_(std::make_shared<TableHold>(store_, claimed.table)),
      source_(claimed.source),
      source_rows_left_(claimed.source == nullptr ? 0 : claimed.source->log_count),
      source_hold_(std::move(claimed.source_hold)) {
  resident_bytes_ = is_writable() ? std::min(bytes_, table_->slab->ResidentBytes()) : wish.bytes;
}

TableClaim::~TableClaim() {
  if (has_written_) {
    Commit();
  } else if (is_writable()) {
    const std::lock_guard lock(store_->mutex_);
    table_->state.contents = former_contents_;
  }
}

std::byte* TableClaim::EntryOf(const StoredTable& table, size_t index) const {
  return table.slab->start() + LogOffset(bytes_) + index * EntryBytes(table.row_bytes);
}

void TableClaim::BeginOverwrite() {
  has_written_ = is_overwriting_ = true;
  BeginLog();
}

void TableClaim::BeginLog() {
  const size_t log_bytes = table_->slab->reserved_bytes() - LogOffset(bytes_);
  table_->row_bytes = row_bytes_;
  table_->log_capacity =
      std::min(LogCapacity(bytes_, row_bytes_), log_bytes / EntryBytes(row_bytes_));
  table_->log_count = 0;
}

size_t TableClaim::CopyNext(size_t count) {
  count = std::min(count, bytes_ - copied_bytes_);
  std::memcpy(data() + copied_bytes_, source_->slab->start() + copied_bytes_, count);
  copied_bytes_ += count;
  return count;
}

void TableClaim::EndOverwrite() {
  is_overwriting_ = false;
  source_ = nullptr;
  source_hold_ = nullptr;
}

void TableClaim::UndoRows(size_t count) {
  constexpr size_t kRowsAhead = 16;
  has_written_ = true;
  const StoredTable& changed = copies() ? *source_ : *table_;
  size_t& left = copies() ? source_rows_left_ : table_->log_count;
  const auto row_of = [&](size_t index) {
    int64_t id = 0;
    std::memcpy(&id, EntryOf(changed, index), sizeof(id));
    return data() + static_cast<size_t>(id) * changed.row_bytes;
  };
  for (; count > 0 && left > 0; --count) {
    const size_t last = --left;
    if (last >= kRowsAhead) __builtin_prefetch(row_of(last - kRowsAhead), 1);
    std::memcpy(row_of(last), EntryOf(changed, last) + sizeof(int64_t), changed.row_bytes);
  }
}

void TableClaim::LoseContents() {
  has_written_ = true;
  has_lost_contents_ = true;
}

std::optional<std::vector<int64_t>> TableClaim::ChangedRows() const {
  std::vector<int64_t> rows;
  if (!is_writable()) return rows;
  if (!has_written_ || is_overwriting_ || has_lost_contents_) return std::nullopt;
  for (size_t i = 0; i < table_->log_count; ++i) {
    rows.push_back(0);
    std::memcpy(&rows.back(), EntryOf(*table_, i), sizeof(int64_t));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

void TableClaim::Pin() {
  const std::shared_ptr<PagePinner> pinner = store_->pool_->pinner();
  if (pinner == nullptr) return;
  while (table_->slab->PinNext(RoundUp(bytes_, kPageBytes), pinner)) {
  }
}

void TableClaim::Commit() {
  if (!is_writable() || !has_written_ || is_overwriting_ || has_lost_contents_) return;
  const std::lock_guard lock(store_->mutex_);
  table_->state.contents = contents_;
  table_->state.changed_row_count = static_cast<int64_t>(table_->log_count);
}

TableStore::TableStore(std::shared_ptr<SlabPool> pool, int kept_count)
    : pool_(std::move(pool)), kept_count_(static_cast<size_t>(std::max(0, kept_count))) {}

TableStore::~TableStore() {
  for (auto& table : tables_) pool_->GiveBack(std::move(table->slab));
}

TableStore::LoadPermit TableStore::BeginLoad(const std::string& owner,
                                             const std::vector<TableWish>& wishes) {
  std::unique_ptr<Ahead> unwanted;
  Slabs useless;
  {
    Lock lock(mutex_);
    ++load_counts_[owner];
    WaitForStep(owner, &lock);
    if (ahead_ != nullptr && ahead_->wish.owner == owner) {
      const bool is_wished =
          std::any_of(wishes.begin(), wishes.end(), [this](const TableWish& wish) {
            return wish.is_written && wish.contents == ahead_->wish.contents;
          });
      if (!is_wished || !IsWanted(*ahead_)) unwanted = std::move(ahead_);
    }
    useless = RemoveUseless(owner, wishes);
  }
  EndAhead(std::move(unwanted));
  if (!useless.empty()) {
    TellNeed(owner);
    GiveBack(std::move(useless));
  }
  return {nullptr, [store = shared_from_this(), owner](void* /*nothing*/) {
            const std::lock_guard lock(store->mutex_);
            if (--store->load_counts_[owner] == 0) store->load_counts_.erase(owner);
          }};
}

base::StatusOr<std::unique_ptr<TableClaim>> TableStore::Claim(const TableWish& wish,
                                                              size_t row_bytes) {
  Slabs unusable;
  std::unique_ptr<TableClaim> begun;
  TableClaim::Claimed claimed;
  {
    Lock lock(mutex_);
    WaitForStep(wish.owner, &lock);
    const TableChoice choice = ChooseWritable(wish, &unusable);
    begun = TakeOverAhead(wish, row_bytes, choice);
    if (begun == nullptr) claimed = Hold(choice, wish.is_written);
  }
  GiveBack(std::move(unusable));
  if (begun != nullptr) return begun;
  if (claimed.table == nullptr) {
    auto made = MakeTable(wish, row_bytes);
    if (!made.ok()) return made.status();
    const std::lock_guard lock(mutex_);
    tables_.push_back(std::move(made.value()));
    claimed.table = tables_.back().get();
  }
  return std::unique_ptr<TableClaim>(
      new TableClaim(shared_from_this(), std::move(claimed), wish, row_bytes));
}

size_t TableStore::LogBytesMax(size_t bytes, size_t row_bytes) {
  return LogCapacity(bytes, row_bytes) * TableClaim::EntryBytes(row_bytes);
}

bool TableStore::WouldShare(const TableWish& wish) const {
  const std::lock_guard lock(mutex_);
  return ChooseTable(wish, States()).use == TableUse::kShare;
}

// Chooses how a load gets a table. Removes the tables that cannot be unsealed.
TableChoice TableStore::ChooseWritable(const TableWish& wish, Slabs* unusable) {
  for (;;) {
    const TableChoice choice = ChooseTable(wish, States());
    if (choice.use == TableUse::kFresh || choice.use == TableUse::kShare) return choice;
    Slab& slab = *tables_[choice.index]->slab;
    if (!slab.is_sealed() || slab.Unseal().ok()) return choice;
    unusable->push_back(Remove(choice.index));
  }
}

// Makes the copy ahead that is under way the load's, if the load would begin the same copy, and
// returns null if not.
std::unique_ptr<TableClaim> TableStore::TakeOverAhead(const TableWish& wish, size_t row_bytes,
                                                      const TableChoice& choice) {
  if (ahead_ == nullptr || !wish.is_written || !choice.source) return nullptr;
  const TableWish& begun = ahead_->wish;
  if (std::tie(begun.owner, begun.contents, begun.bytes, ahead_->row_bytes) !=
      std::tie(wish.owner, wish.contents, wish.bytes, row_bytes)) {
    return nullptr;
  }
  tables_.push_back(std::move(ahead_->table));
  std::unique_ptr<TableClaim> claim = std::move(ahead_->claim);
  ahead_ = nullptr;
  return claim;
}

// Keeps the chosen table for a load, and the table that is copied from being written to or dropped.
// The result has no table if the load needs fresh memory. Takes the contents of a table that the
// load may write away in the same step, because a table without contents is shared by no load.
TableClaim::Claimed TableStore::Hold(const TableChoice& choice, bool is_written) {
  TableClaim::Claimed claimed;
  claimed.choice = choice;
  if (choice.use != TableUse::kFresh) {
    claimed.table = tables_[choice.index].get();
    TableState& state = claimed.table->state;
    ++state.holder_count;
    if (choice.use != TableUse::kShare) {
      claimed.former_contents = std::exchange(state.contents, "");
      state.is_written = is_written;
    }
  }
  if (choice.source) {
    StoredTable* const source = tables_[*choice.source].get();
    ++source->state.holder_count;
    claimed.source = source;
    claimed.source_hold = std::make_shared<TableHold>(shared_from_this(), source);
  }
  return claimed;
}

base::StatusOr<std::unique_ptr<StoredTable>> TableStore::MakeTable(const TableWish& wish,
                                                                   size_t row_bytes) {
  base::StatusOr<std::unique_ptr<Slab>> slab =
      pool_->Take(wish.is_written ? WrittenOwner(wish.owner) : ReadOwner(wish.owner),
                  TableSlabBytes(wish.bytes, row_bytes), wish.bytes);
  if (!slab.ok()) return slab.status();
  auto table = std::make_unique<StoredTable>();
  table->state.owner = wish.owner;
  table->state.bytes = wish.bytes;
  table->state.holder_count = 1;
  table->state.is_written = wish.is_written;
  table->slab = std::move(slab.value());
  return table;
}

void TableStore::Release(StoredTable* table) {
  const std::string owner = table->state.owner;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    --table->state.holder_count;
    table->state.released_at = ++release_count_;
    surplus = RemoveSurplus();
  }
  if (surplus.empty()) return;
  GiveBack(std::move(surplus));
  TellNeed(owner);
}

void TableStore::Expect(const std::string& owner, const VersionTables& tables) {
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_[owner] = tables;
    surplus = RemoveSurplus();
  }
  GiveBack(std::move(surplus));
  TellNeed(owner);
}

// Tells the pool how much memory is missing for the written tables of the owner's next version.
void TableStore::TellNeed(const std::string& owner) {
  // So that what is told last is what was found last.
  const std::lock_guard telling(telling_mutex_);
  size_t missing_bytes = 0;
  size_t log_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto version = versions_.find(owner);
    if (version != versions_.end()) {
      missing_bytes = MissingBytes(owner, version->second);
      log_bytes = version->second.log_bytes_max;
    }
  }
  if (missing_bytes == 0) return pool_->Forget(WrittenOwner(owner));
  // No slab is owed: the slabs that are in use are those of versions that serve.
  pool_->Expect(WrittenOwner(owner), {missing_bytes + log_bytes, missing_bytes, missing_bytes},
                std::numeric_limits<int>::max());
}

// Returns the memory that is missing for a copy of the owner's written tables besides those of the
// versions that it serves at rest.
size_t TableStore::MissingBytes(const std::string& owner, const VersionTables& version) const {
  size_t bytes = 0;
  for (const auto& table : tables_) {
    if (table->state.owner == owner) bytes += LogOffset(table->state.bytes);
  }
  if (ahead_ != nullptr && ahead_->wish.owner == owner) bytes += LogOffset(ahead_->wish.bytes);
  const size_t wanted_bytes =
      version.slab_bytes + version.written_slab_bytes * static_cast<size_t>(version.serving_count);
  return std::min(version.written_slab_bytes, wanted_bytes - std::min(wanted_bytes, bytes));
}

void TableStore::Forget(const std::string& owner) {
  std::unique_ptr<Ahead> ended;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_.erase(owner);
    surplus = RemoveSurplus();
    // The keeper ends a copy that it is at.
    if (ahead_ != nullptr && ahead_->wish.owner == owner && !ahead_->is_stepping) {
      ended = std::move(ahead_);
    }
  }
  EndAhead(std::move(ended));
  GiveBack(std::move(surplus));
  TellNeed(owner);
}

base::Status TableStore::Seal(const std::vector<const TableClaim*>& claims) {
  const std::lock_guard lock(mutex_);
  for (const TableClaim* const claim : claims) {
    MILLPOND_RETURN_IF_ERROR(claim->table_->slab->Seal());
  }
  return {};
}

TableStatistics TableStore::Statistics() const {
  const std::lock_guard lock(mutex_);
  TableStatistics statistics;
  if (ahead_ != nullptr) statistics.copying_bytes = static_cast<int64_t>(ahead_->wish.bytes);
  for (const auto& table : tables_) {
    // The keeper is no version.
    const bool is_copied = ahead_ != nullptr && ahead_->source == table.get();
    const bool is_held = table->state.holder_count > (is_copied ? 1 : 0);
    ++(is_held ? statistics.held_count : statistics.standby_count);
    (is_held ? statistics.held_bytes : statistics.standby_bytes) +=
        static_cast<int64_t>(table->state.bytes);
    if (!is_held && table->state.contents.empty()) ++statistics.dirty_count;
  }
  return statistics;
}

std::vector<TableState> TableStore::States() const {
  std::vector<TableState> states;
  for (const auto& table : tables_) states.push_back(table->state);
  return states;
}

std::unique_ptr<Slab> TableStore::Remove(size_t index) {
  std::unique_ptr<Slab> slab = std::move(tables_[index]->slab);
  tables_.erase(tables_.begin() + static_cast<std::ptrdiff_t>(index));
  return slab;
}

// Removes the tables without a holder that are too many, and all that are of no use.
TableStore::Slabs TableStore::RemoveSurplus() {
  Slabs slabs;
  for (size_t i = tables_.size(); i-- > 0;) {
    if (tables_[i]->state.holder_count == 0 && !IsUseful(tables_[i]->state)) {
      slabs.push_back(Remove(i));
    }
  }
  std::vector<size_t> dropped = ChooseDropped(States(), kept_count_, VersionBytesMax());
  std::sort(dropped.rbegin(), dropped.rend());
  for (const size_t index : dropped) slabs.push_back(Remove(index));
  return slabs;
}

// Returns false if the owner of a table without a holder is gone, or if its versions have tables of
// other sizes, as after a file with grown tables.
bool TableStore::IsUseful(const TableState& free) const {
  if (versions_.count(free.owner) == 0) return false;
  // A load may not have got all of its tables yet.
  if (load_counts_.count(free.owner) > 0) return true;
  bool has_others = false;
  for (const auto& table : tables_) {
    const TableState& state = table->state;
    if (state.owner != free.owner || state.holder_count == 0) continue;
    if (state.bytes == free.bytes) return true;
    has_others = true;
  }
  return !has_others;
}

// Removes the owner's tables without a holder that are of no size that is wished for.
TableStore::Slabs TableStore::RemoveUseless(const std::string& owner,
                                            const std::vector<TableWish>& wishes) {
  Slabs slabs;
  for (size_t i = tables_.size(); i-- > 0;) {
    const TableState& state = tables_[i]->state;
    const bool is_useful =
        std::any_of(wishes.begin(), wishes.end(),
                    [&state](const TableWish& wish) { return wish.bytes == state.bytes; });
    if (state.owner == owner && state.holder_count == 0 && !is_useful) slabs.push_back(Remove(i));
  }
  return slabs;
}

size_t TableStore::VersionBytesMax() const {
  size_t bytes = 0;
  for (const auto& [owner, version] : versions_) bytes = std::max(bytes, version.bytes);
  return bytes;
}

void TableStore::GiveBack(Slabs slabs) {
  for (auto& slab : slabs) pool_->GiveBack(std::move(slab));
}

std::optional<int64_t> TableStore::CopyAhead() {
  if (!BeginStep()) return std::nullopt;
  // Nobody else changes it during a step.
  const int64_t rest_ns = ahead_->rest_ns;
  TableClaim& claim = *ahead_->claim;
  if (claim.bytes_to_fill() > 0) {
    claim.CopyNext(kAheadPieceBytes);
  } else {
    claim.UndoRows(kAheadRowCount);
  }
  if (claim.bytes_to_fill() + claim.changed_row_count() == 0) {
    FinishAhead();
  } else {
    const std::lock_guard lock(mutex_);
    ahead_->is_stepping = false;
  }
  stepped_.notify_all();
  return rest_ns;
}

// Begins a step of the copy that is under way, or of the next one. Returns false if there is none.
bool TableStore::BeginStep() {
  std::unique_ptr<Ahead> unwanted;
  {
    const std::lock_guard lock(mutex_);
    if (ahead_ != nullptr && load_counts_.count(ahead_->wish.owner) > 0) return false;
    if (ahead_ != nullptr && IsWanted(*ahead_)) {
      ahead_->is_stepping = true;
      return true;
    }
    unwanted = std::move(ahead_);
  }
  EndAhead(std::move(unwanted));
  return BeginAhead();
}

// Begins the next copy, and its first step. Returns false if nothing is to be copied.
bool TableStore::BeginAhead() {
  const std::map<std::string, size_t> room_bytes = RoomForCopies();
  TableClaim::Claimed claimed;
  {
    const std::lock_guard lock(mutex_);
    if (has_stopped_copying_) return false;
    std::optional<TableChoice> choice = ChooseAhead(room_bytes);
    if (!choice) return false;
    const StoredTable& source = *tables_[*choice->source];
    const TableState& state = source.state;
    ahead_ = std::make_unique<Ahead>();
    ahead_->wish = {state.owner, state.contents, state.bytes, true};
    ahead_->row_bytes = source.row_bytes;
    ahead_->rest_ns = AheadRestNs(versions_.at(state.owner).written_slab_bytes);
    ahead_->source = &source;
    ahead_->is_stepping = true;
    claimed = Hold(*choice, true);
    if (claimed.table != nullptr) {
      const auto place = tables_.begin() + static_cast<std::ptrdiff_t>(choice->index);
      ahead_->table = std::move(*place);
      tables_.erase(place);
    }
  }
  if (claimed.table == nullptr) {
    auto made = MakeTable(ahead_->wish, ahead_->row_bytes);
    if (!made.ok()) {
      const std::lock_guard lock(mutex_);
      ahead_ = nullptr;
      stepped_.notify_all();
      return false;
    }
    ahead_->table = std::move(made.value());
    claimed.table = ahead_->table.get();
  }
  ahead_->claim.reset(
      new TableClaim(shared_from_this(), std::move(claimed), ahead_->wish, ahead_->row_bytes));
  ahead_->claim->BeginOverwrite();
  TellNeed(ahead_->wish.owner);
  return true;
}

// Returns the copy that is to be made next.
std::optional<TableChoice> TableStore::ChooseAhead(std::map<std::string, size_t> room_bytes) const {
  for (const auto& [owner, count] : load_counts_) room_bytes.erase(owner);
  // An owner may have been forgotten since its room was asked for.
  for (auto room = room_bytes.begin(); room != room_bytes.end();) {
    room = versions_.count(room->first) == 0 ? room_bytes.erase(room) : std::next(room);
  }
  std::optional<TableChoice> choice = ChooseCopyAhead(States(), room_bytes);
  if (!choice || choice->use == TableUse::kFresh) return choice;
  // To unseal it would keep the mutex for long.
  return tables_[choice->index]->slab->is_sealed() ? std::nullopt : choice;
}

// Returns for each known owner the memory that copies of its tables may take of the pool: what the
// pool keeps for them, and the store may keep after that.
std::map<std::string, size_t> TableStore::RoomForCopies() const {
  std::map<std::string, size_t> room_bytes;
  {
    const std::lock_guard lock(mutex_);
    size_t standby_bytes = 0;
    for (const auto& table : tables_) {
      if (table->state.holder_count == 0) standby_bytes += table->state.bytes;
    }
    const size_t kept_bytes = kept_count_ * VersionBytesMax();
    const size_t left_bytes = kept_bytes - std::min(kept_bytes, standby_bytes);
    for (const auto& [owner, version] : versions_) {
      room_bytes[owner] = std::min(MissingBytes(owner, version), left_bytes);
    }
  }
  for (auto& [owner, bytes] : room_bytes) {
    if (bytes > 0 && !pool_->CanSpare(bytes, {owner, WrittenOwner(owner)})) bytes = 0;
  }
  return room_bytes;
}

// Puts the complete copy among the tables, on standby. Nobody sees it before.
void TableStore::FinishAhead() {
  const std::string owner = ahead_->wish.owner;
  {
    const std::lock_guard lock(mutex_);
    ahead_->source = nullptr;
  }
  ahead_->claim->EndOverwrite();
  ahead_->claim = nullptr;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    tables_.push_back(std::move(ahead_->table));
    ahead_ = nullptr;
    surplus = RemoveSurplus();
  }
  if (surplus.empty()) return;
  GiveBack(std::move(surplus));
  TellNeed(owner);
}

// Ends a copy, if there is one, and gives its memory to the pool.
void TableStore::EndAhead(std::unique_ptr<Ahead> ahead) {
  if (ahead == nullptr) return;
  ahead->claim = nullptr;
  // The pool would return the memory to the system if it were told later that it is needed.
  TellNeed(ahead->wish.owner);
  if (ahead->table != nullptr) pool_->GiveBack(std::move(ahead->table->slab));
}

void TableStore::StopCopyingAhead() {
  std::unique_ptr<Ahead> ended;
  {
    const std::lock_guard lock(mutex_);
    has_stopped_copying_ = true;
    ended = std::move(ahead_);
  }
  EndAhead(std::move(ended));
}

// Waits until the keeper is at no copy of the owner.
void TableStore::WaitForStep(const std::string& owner, Lock* lock) {
  stepped_.wait(*lock, [&] {
    return ahead_ == nullptr || ahead_->wish.owner != owner || !ahead_->is_stepping;
  });
}

// Returns false if the copy is of no use any more: its owner is gone, or another table without a
// holder has the contents, as the copied one has once its versions are gone.
bool TableStore::IsWanted(const Ahead& ahead) const {
  const auto is_copy = [&ahead](const auto& table) {
    const TableState& state = table->state;
    const int holder_count = state.holder_count - (table.get() == ahead.source ? 1 : 0);
    return holder_count == 0 && state.owner == ahead.wish.owner &&
           state.contents == ahead.wish.contents && state.bytes == ahead.wish.bytes;
  };
  return versions_.count(ahead.wish.owner) > 0 &&
         std::none_of(tables_.begin(), tables_.end(), is_copy);
}

}  // namespace millpond::memory
