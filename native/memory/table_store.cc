#include "native/memory/table_store.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace millpond::memory {
namespace {

// A log that is longer costs more than reading the table.
constexpr size_t kLoggedRowsShare = 4;

// A copy ahead takes ten seconds, as a restore beside requests does. It is never slower than what
// requests do not notice, and never so fast that it takes much of the memory's bandwidth.
constexpr size_t kCopySeconds = 10;
constexpr size_t kCopyBytesPerSecondMin = 250'000'000;
constexpr size_t kCopyBytesPerSecondMax = 1'000'000'000;
// Undoing so many rows takes about as long as copying a piece.
constexpr size_t kUndoneRowCount = 1024;
// The share of a copy ahead that may be without memory: the pool counts what a version has left
// untouched as memory that is there.
constexpr size_t kCopyShortShare = 8;

int64_t CopyRestNs(size_t written_bytes) {
  const size_t pace =
      std::clamp(written_bytes / kCopySeconds, kCopyBytesPerSecondMin, kCopyBytesPerSecondMax);
  return static_cast<int64_t>(TableStore::kCopyPieceBytes * 1'000'000'000 / pace);
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

// Returns the memory that is missing for a copy of an owner's written tables besides those of the
// versions that it serves at rest. `slab_bytes`: of all tables that it has.
size_t MissingBytes(const VersionTables& version, size_t slab_bytes) {
  const size_t wanted_bytes =
      version.slab_bytes + version.written_slab_bytes * static_cast<size_t>(version.serving_count);
  return std::min(version.written_slab_bytes, wanted_bytes - std::min(wanted_bytes, slab_bytes));
}

}  // namespace

void VersionTables::Add(size_t table_bytes, size_t row_bytes, bool is_written) {
  bytes += table_bytes;
  slab_bytes += LogOffset(table_bytes);
  if (!is_written) return;
  written_slab_bytes += LogOffset(table_bytes);
  log_bytes_max += TableSlabBytes(table_bytes, row_bytes) - LogOffset(table_bytes);
}

void StoredTable::AddHolder(uint64_t load) {
  loads.insert(load);
  newest_load = std::max(newest_load, load);
  ++state.holder_count;
  state.load = *loads.rbegin();
}

void StoredTable::RemoveHolder(uint64_t load) {
  loads.erase(loads.find(load));
  --state.holder_count;
  state.load = loads.empty() ? newest_load : *loads.rbegin();
}

TableHold::~TableHold() { store_->Release(table_, load_); }

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
      hold_(std::make_shared<TableHold>(store_, claimed.table, claimed.load)),
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
  const auto is_own = [&] { return copy_ != nullptr && copy_->wish.owner == owner; };
  const auto is_wished = [&] {
    return std::any_of(wishes.begin(), wishes.end(), [this](const TableWish& wish) {
      return wish.is_written && wish.contents == copy_->wish.contents;
    });
  };
  std::unique_ptr<TableCopy> unwanted;
  Slabs useless;
  uint64_t load = 0;
  {
    Lock lock(mutex_);
    load = ++load_count_;
    std::set<size_t>& wished_bytes = loads_[owner][load];
    for (const TableWish& wish : wishes) wished_bytes.insert(wish.bytes);
    stepped_.wait_for(lock, kStepPatience, [&] { return !is_own() || !copy_->is_stepping; });
    if (is_own() && !is_wished()) copy_->is_given_up = true;
    unwanted = TakeUnwantedCopy();
    useless = RemoveSurplus();
    if (!useless.empty()) TellNeed(owner);
  }
  EndCopy(std::move(unwanted));
  GiveBack(std::move(useless));
  return {new uint64_t(load), [store = shared_from_this(), owner](const uint64_t* number) {
            store->EndLoad(owner, *number);
            delete number;
          }};
}

// Lets the keeper copy ahead again, if this was the last load.
void TableStore::EndLoad(const std::string& owner, uint64_t load) {
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    auto& own_loads = loads_[owner];
    own_loads.erase(load);
    if (own_loads.empty()) loads_.erase(owner);
    has_failed_to_copy_ = false;
    surplus = RemoveSurplus();
    TellNeed(owner);
  }
  GiveBack(std::move(surplus));
}

base::StatusOr<std::unique_ptr<TableClaim>> TableStore::Claim(const TableWish& wish,
                                                              size_t row_bytes,
                                                              const LoadPermit& permit) {
  Slabs unusable;
  std::unique_ptr<TableClaim> begun;
  TableClaim::Claimed claimed;
  {
    const std::lock_guard lock(mutex_);
    const TableChoice choice = ChooseWritable(wish, &unusable);
    begun = TakeOverCopy(wish, row_bytes, choice, *permit);
    if (begun == nullptr) claimed = Hold(choice, wish.is_written, *permit);
  }
  GiveBack(std::move(unusable));
  if (begun != nullptr) return begun;
  if (claimed.table == nullptr) {
    auto made = MakeTable(wish, row_bytes, *permit);
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
// returns null if not. In the middle of a step the copy is the keeper's: the load goes without it.
std::unique_ptr<TableClaim> TableStore::TakeOverCopy(const TableWish& wish, size_t row_bytes,
                                                     const TableChoice& choice, uint64_t load) {
  if (copy_ == nullptr || !wish.is_written || !choice.source) return nullptr;
  const TableWish& begun = copy_->wish;
  if (std::tie(begun.owner, begun.contents, begun.bytes, copy_->row_bytes) !=
      std::tie(wish.owner, wish.contents, wish.bytes, row_bytes)) {
    return nullptr;
  }
  if (copy_->is_stepping) {
    copy_->is_given_up = true;
    return nullptr;
  }
  tables_.push_back(std::move(copy_->table));
  std::unique_ptr<TableClaim> claim = std::move(copy_->claim);
  claim->table_->AddHolder(load);
  claim->table_->RemoveHolder(std::exchange(claim->hold_->load_, load));
  copy_ = nullptr;
  return claim;
}

// Keeps the chosen table for a load, and the table that is copied from being written to or dropped.
// The result has no table if the load needs fresh memory. Takes the contents of a table that the
// load may write away in the same step, because a table without contents is shared by no load.
TableClaim::Claimed TableStore::Hold(const TableChoice& choice, bool is_written, uint64_t load) {
  TableClaim::Claimed claimed;
  claimed.choice = choice;
  claimed.load = load;
  if (choice.use != TableUse::kFresh) {
    claimed.table = tables_[choice.index].get();
    TableState& state = claimed.table->state;
    claimed.table->AddHolder(load);
    if (choice.use != TableUse::kShare) {
      claimed.former_contents = std::exchange(state.contents, "");
      state.is_written = is_written;
    }
  }
  if (choice.source) {
    StoredTable* const source = tables_[*choice.source].get();
    source->AddHolder(load);
    claimed.source = source;
    claimed.source_hold = std::make_shared<TableHold>(shared_from_this(), source, load);
  }
  return claimed;
}

base::StatusOr<std::unique_ptr<StoredTable>> TableStore::MakeTable(const TableWish& wish,
                                                                   size_t row_bytes,
                                                                   uint64_t load) {
  base::StatusOr<std::unique_ptr<Slab>> slab =
      pool_->Take(wish.is_written ? WrittenOwner(wish.owner) : ReadOwner(wish.owner),
                  TableSlabBytes(wish.bytes, row_bytes), wish.bytes);
  if (!slab.ok()) return slab.status();
  auto table = std::make_unique<StoredTable>();
  table->state.owner = wish.owner;
  table->state.bytes = wish.bytes;
  table->AddHolder(load);
  table->state.is_written = wish.is_written;
  table->slab = std::move(slab.value());
  return table;
}

void TableStore::Release(StoredTable* table, uint64_t load) {
  std::unique_ptr<TableCopy> unwanted;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    const std::string owner = table->state.owner;
    table->RemoveHolder(load);
    table->state.released_at = ++release_count_;
    unwanted = TakeUnwantedCopy();
    surplus = RemoveSurplus();
    if (!surplus.empty()) TellNeed(owner);
  }
  EndCopy(std::move(unwanted));
  GiveBack(std::move(surplus));
}

void TableStore::Expect(const std::string& owner, const VersionTables& tables) {
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_[owner] = tables;
    has_failed_to_copy_ = false;
    surplus = RemoveSurplus();
    TellNeed(owner);
  }
  GiveBack(std::move(surplus));
}

void TableStore::Forget(const std::string& owner) {
  std::unique_ptr<TableCopy> unwanted;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_.erase(owner);
    unwanted = TakeUnwantedCopy();
    surplus = RemoveSurplus();
    TellNeed(owner);
  }
  EndCopy(std::move(unwanted));
  GiveBack(std::move(surplus));
}

// Tells the pool how much memory is missing for the written tables of the owner's next version. The
// pool never calls the store, so its mutex may be taken here.
void TableStore::TellNeed(const std::string& owner) {
  const auto version = versions_.find(owner);
  const size_t missing_bytes =
      version == versions_.end() ? 0 : MissingBytes(version->second, SlabBytesByOwner()[owner]);
  if (missing_bytes == 0) return pool_->Forget(WrittenOwner(owner));
  // No slab is owed: the slabs that are in use are those of versions that serve.
  pool_->Expect(WrittenOwner(owner),
                {missing_bytes + version->second.log_bytes_max, missing_bytes, missing_bytes},
                std::numeric_limits<int>::max());
}

// Returns the memory of each owner's tables, without the logs.
std::map<std::string, size_t> TableStore::SlabBytesByOwner() const {
  std::map<std::string, size_t> bytes;
  for (const auto& table : tables_) bytes[table->state.owner] += LogOffset(table->state.bytes);
  if (copy_ != nullptr && copy_->has_memory) {
    bytes[copy_->wish.owner] += LogOffset(copy_->wish.bytes);
  }
  return bytes;
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
  if (copy_ != nullptr) statistics.copying_bytes = static_cast<int64_t>(copy_->wish.bytes);
  for (const auto& table : tables_) {
    // The keeper is no version.
    const bool is_copied = copy_ != nullptr && copy_->source == table.get();
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

void TableStore::Remove(std::vector<size_t> indices, Slabs* removed) {
  std::sort(indices.rbegin(), indices.rend());
  for (const size_t index : indices) removed->push_back(Remove(index));
}

// Removes the tables without a holder that are of no use, and then those that are too many.
TableStore::Slabs TableStore::RemoveSurplus() {
  std::map<std::string, std::optional<std::set<size_t>>> wished_bytes;
  for (const auto& [owner, version] : versions_) wished_bytes[owner];
  for (const auto& [owner, loads] : loads_) {
    if (versions_.count(owner) == 0) continue;
    std::set<size_t>& bytes = wished_bytes[owner].emplace();
    for (const auto& [load, wishes] : loads) bytes.insert(wishes.begin(), wishes.end());
  }
  Slabs slabs;
  Remove(ChooseUseless(States(), wished_bytes), &slabs);
  Remove(ChooseDropped(States(), kept_count_, VersionBytesMax()), &slabs);
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
  if (!BeginCopyStep()) return std::nullopt;
  PerformCopyStep();
  return EndCopyStep();
}

// Begins a step of the copy that is under way, or of the next one.
bool TableStore::BeginCopyStep() {
  const std::lock_guard lock(mutex_);
  if (!loads_.empty() || has_stopped_copying_) return false;
  if (copy_ == nullptr && !has_failed_to_copy_) copy_ = BeginCopy();
  if (copy_ == nullptr) return false;
  copy_->is_stepping = true;
  return true;
}

// Chooses the next copy. Returns null if nothing is to be copied.
std::unique_ptr<TableStore::TableCopy> TableStore::BeginCopy() {
  const std::optional<TableChoice> choice = ChooseCopyAhead(States(), RoomForCopies());
  if (!choice) return nullptr;
  const StoredTable& source = *tables_[*choice->source];
  const TableState& state = source.state;
  auto copy = std::make_unique<TableCopy>();
  copy->wish = {state.owner, state.contents, state.bytes, true};
  copy->row_bytes = source.row_bytes;
  copy->rest_ns = CopyRestNs(versions_.at(state.owner).written_slab_bytes);
  copy->source = &source;
  copy->claimed = Hold(*choice, true, state.load);
  if (copy->claimed.table != nullptr) {
    const auto place = tables_.begin() + static_cast<std::ptrdiff_t>(choice->index);
    copy->table = std::move(*place);
    copy->has_memory = true;
    tables_.erase(place);
  }
  return copy;
}

// Returns for each known owner the memory that copies of its tables may take of the pool: what the
// pool keeps for them, and the store may keep after that.
std::map<std::string, size_t> TableStore::RoomForCopies() const {
  size_t standby_bytes = 0;
  for (const auto& table : tables_) {
    if (table->state.holder_count == 0) standby_bytes += table->state.bytes;
  }
  const size_t kept_bytes = kept_count_ * VersionBytesMax();
  const size_t left_bytes = kept_bytes - std::min(kept_bytes, standby_bytes);
  std::map<std::string, size_t> slab_bytes = SlabBytesByOwner();
  std::map<std::string, size_t> room_bytes;
  for (const auto& [owner, version] : versions_) {
    const size_t bytes = std::min(MissingBytes(version, slab_bytes[owner]), left_bytes);
    const bool has_room = bytes > 0 && pool_->CanSpare(bytes, {owner, WrittenOwner(owner)});
    room_bytes[owner] = has_room ? bytes : 0;
  }
  return room_bytes;
}

// Nobody else touches the copy during a step, nor the pointer to it.
void TableStore::PerformCopyStep() {
  if (copy_->claim == nullptr && !MakeClaim(copy_.get())) return;
  TableClaim& claim = *copy_->claim;
  if (claim.bytes_to_fill() > 0) {
    claim.CopyNext(kCopyPieceBytes);
  } else {
    claim.UndoRows(kUndoneRowCount);
  }
}

// Makes the claim of a copy in its first step. Returns false if the system refuses its memory, or
// if the spares have it no more: a load may have taken it since the choice.
bool TableStore::MakeClaim(TableCopy* copy) {
  if (copy->table == nullptr) {
    auto made = MakeTable(copy->wish, copy->row_bytes, copy->claimed.load);
    if (!made.ok()) return false;
    copy->table = std::move(made.value());
    copy->claimed.table = copy->table.get();
    const size_t bytes = copy->wish.bytes;
    const size_t resident_bytes = std::min(bytes, copy->table->slab->ResidentBytes());
    if (bytes - resident_bytes > bytes / kCopyShortShare) return false;
  }
  Slab& slab = *copy->table->slab;
  if (slab.is_sealed() && !slab.Unseal().ok()) return false;
  copy->claim.reset(
      new TableClaim(shared_from_this(), std::move(copy->claimed), copy->wish, copy->row_bytes));
  copy->claim->BeginOverwrite();
  return true;
}

std::optional<int64_t> TableStore::EndCopyStep() {
  const TableClaim* const claim = copy_->claim.get();
  if (claim != nullptr && claim->bytes_to_fill() + claim->changed_row_count() == 0) {
    return FinishCopy();
  }
  const int64_t rest_ns = copy_->rest_ns;
  std::unique_ptr<TableCopy> unwanted;
  {
    const std::lock_guard lock(mutex_);
    copy_->is_stepping = false;
    if (claim == nullptr) {
      // The end of the copy wakes the keeper, which would begin it again.
      has_failed_to_copy_ = has_failed_to_copy_ || IsWanted(*copy_);
      copy_->is_given_up = true;
    } else {
      if (!std::exchange(copy_->has_memory, true)) TellNeed(copy_->wish.owner);
    }
    unwanted = TakeUnwantedCopy();
  }
  stepped_.notify_all();
  EndCopy(std::move(unwanted));
  return rest_ns;
}

// Puts the complete copy among the tables, on standby. Nobody sees it before.
int64_t TableStore::FinishCopy() {
  const int64_t rest_ns = copy_->rest_ns;
  {
    const std::lock_guard lock(mutex_);
    copy_->source = nullptr;
  }
  copy_->claim->EndOverwrite();
  copy_->claim = nullptr;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    const std::string owner = copy_->wish.owner;
    tables_.push_back(std::move(copy_->table));
    copy_ = nullptr;
    surplus = RemoveSurplus();
    TellNeed(owner);
  }
  stepped_.notify_all();
  GiveBack(std::move(surplus));
  return rest_ns;
}

// Ends a copy, if there is one, and gives its memory to the pool.
void TableStore::EndCopy(std::unique_ptr<TableCopy> copy) {
  if (copy == nullptr) return;
  copy->claim = nullptr;
  copy->claimed = {};
  if (copy->table == nullptr) return;
  {
    // First, because the pool returns memory to the system unless it knows a need for it.
    const std::lock_guard lock(mutex_);
    TellNeed(copy->wish.owner);
  }
  pool_->GiveBack(std::move(copy->table->slab));
}

void TableStore::StopCopyingAhead() {
  std::unique_ptr<TableCopy> ended;
  {
    const std::lock_guard lock(mutex_);
    has_stopped_copying_ = true;
    ended = TakeUnwantedCopy();
  }
  EndCopy(std::move(ended));
}

// Takes the copy away if it is of no use any more, unless the keeper is at it and will end it.
std::unique_ptr<TableStore::TableCopy> TableStore::TakeUnwantedCopy() {
  if (copy_ == nullptr || copy_->is_stepping || IsWanted(*copy_)) return nullptr;
  return std::move(copy_);
}

// Returns false if the copy is of no use any more: it was given up, its owner is gone, or another
// table without a holder has the contents, as the copied one has once its versions are gone.
bool TableStore::IsWanted(const TableCopy& copy) const {
  const auto is_copy = [&copy](const auto& table) {
    const TableState& state = table->state;
    const int holder_count = state.holder_count - (table.get() == copy.source ? 1 : 0);
    return holder_count == 0 && state.owner == copy.wish.owner &&
           state.contents == copy.wish.contents && state.bytes == copy.wish.bytes;
  };
  return !copy.is_given_up && !has_stopped_copying_ && versions_.count(copy.wish.owner) > 0 &&
         std::none_of(tables_.begin(), tables_.end(), is_copy);
}

}  // namespace millpond::memory
