#include "native/memory/table_store.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millpond::memory {
namespace {

// A log that is longer costs more than reading the table.
constexpr size_t kLoggedRowsShare = 4;

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

void TableClaim::Copy(size_t offset, size_t count) {
  std::memcpy(data() + offset, source_->slab->start() + offset, count);
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

base::StatusOr<std::unique_ptr<TableClaim>> TableStore::Claim(const TableWish& wish,
                                                              size_t row_bytes) {
  Slabs unusable;
  TableClaim::Claimed claimed = ClaimStored(wish, &unusable);
  GiveBack(std::move(unusable));
  if (claimed.table == nullptr) {
    base::StatusOr<StoredTable*> made = MakeTable(wish, row_bytes);
    if (!made.ok()) return made.status();
    claimed.table = made.value();
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

// Returns a stored table, which then has one holder more, or none if the load needs fresh memory.
// Takes its contents away in the same step, because a table without contents is shared by no load.
TableClaim::Claimed TableStore::ClaimStored(const TableWish& wish, Slabs* unusable) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    TableClaim::Claimed claimed;
    claimed.choice = ChooseTable(wish, States());
    if (claimed.choice.use == TableUse::kFresh) {
      HoldSource(&claimed);
      return claimed;
    }
    StoredTable& table = *tables_[claimed.choice.index];
    const bool is_shared = claimed.choice.use == TableUse::kShare;
    if (is_shared || !table.slab->is_sealed() || table.slab->Unseal().ok()) {
      ++table.state.holder_count;
      if (!is_shared) claimed.former_contents = std::exchange(table.state.contents, "");
      claimed.table = &table;
      HoldSource(&claimed);
      return claimed;
    }
    unusable->push_back(Remove(claimed.choice.index));
  }
}

// Keeps the table that is copied from being written to or dropped.
void TableStore::HoldSource(TableClaim::Claimed* claimed) {
  if (!claimed->choice.source) return;
  StoredTable* const source = tables_[*claimed->choice.source].get();
  ++source->state.holder_count;
  claimed->source = source;
  claimed->source_hold = std::make_shared<TableHold>(shared_from_this(), source);
}

base::StatusOr<StoredTable*> TableStore::MakeTable(const TableWish& wish, size_t row_bytes) {
  base::StatusOr<std::unique_ptr<Slab>> slab =
      pool_->Take(wish.is_written ? WrittenOwner(wish.owner) : ReadOwner(wish.owner),
                  TableSlabBytes(wish.bytes, row_bytes), wish.bytes);
  if (!slab.ok()) return slab.status();
  auto table = std::make_unique<StoredTable>();
  table->state.owner = wish.owner;
  table->state.bytes = wish.bytes;
  table->state.holder_count = 1;
  table->slab = std::move(slab.value());
  const std::lock_guard lock(mutex_);
  tables_.push_back(std::move(table));
  return tables_.back().get();
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

// Tells the pool if memory for the written tables of the owner's next version is missing.
void TableStore::TellNeed(const std::string& owner) {
  size_t missing_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto version = versions_.find(owner);
    if (version != versions_.end() && LacksCopy(owner, version->second)) {
      missing_bytes = version->second.written_bytes;
    }
  }
  if (missing_bytes == 0) return pool_->Forget(WrittenOwner(owner));
  // No slab is owed: the slabs that are in use are those of versions that serve.
  pool_->Expect(WrittenOwner(owner), {missing_bytes, missing_bytes, missing_bytes},
                std::numeric_limits<int>::max());
}

bool TableStore::LacksCopy(const std::string& owner, const VersionTables& version) const {
  size_t bytes = 0;
  for (const auto& table : tables_) {
    if (table->state.owner == owner) bytes += table->state.bytes;
  }
  return bytes < version.bytes + version.written_bytes * static_cast<size_t>(version.serving_count);
}

void TableStore::Forget(const std::string& owner) {
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_.erase(owner);
    surplus = RemoveSurplus();
  }
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
  for (const auto& table : tables_) {
    const bool is_held = table->state.holder_count > 0;
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

// Removes the tables without a holder that are too many, and all of owners that are gone.
TableStore::Slabs TableStore::RemoveSurplus() {
  Slabs slabs;
  for (size_t i = tables_.size(); i-- > 0;) {
    const TableState& state = tables_[i]->state;
    if (state.holder_count == 0 && versions_.count(state.owner) == 0) slabs.push_back(Remove(i));
  }
  size_t version_bytes_max = 0;
  for (const auto& [owner, tables] : versions_) {
    version_bytes_max = std::max(version_bytes_max, tables.bytes);
  }
  std::vector<size_t> dropped = ChooseDropped(States(), kept_count_, version_bytes_max);
  std::sort(dropped.rbegin(), dropped.rend());
  for (const size_t index : dropped) slabs.push_back(Remove(index));
  return slabs;
}

void TableStore::GiveBack(Slabs slabs) {
  for (auto& slab : slabs) pool_->GiveBack(std::move(slab));
}

}  // namespace millpond::memory
