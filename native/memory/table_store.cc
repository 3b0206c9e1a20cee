#include "native/memory/table_store.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millpond::memory {
namespace {

// The pool's name for the written tables of a model. No model has a line feed in its name.
std::string WrittenOwner(const std::string& owner) { return owner + "\nwritten tables"; }
std::string ReadOwner(const std::string& owner) { return owner + "\ntables"; }

}  // namespace

TableStore::TableStore(std::shared_ptr<SlabPool> pool, int kept_count)
    : pool_(std::move(pool)), kept_count_(static_cast<size_t>(std::max(0, kept_count))) {}

TableStore::~TableStore() {
  for (auto& table : tables_) pool_->GiveBack(std::move(table->slab));
}

TableStore::LoadPermit TableStore::BeginLoad(const std::string& owner,
                                             const std::vector<TableWish>& wishes) {
  std::unique_ptr<TableClaim> unwanted;
  Slabs useless;
  uint64_t load = 0;
  {
    Lock lock(mutex_);
    load = ++load_count_;
    std::set<size_t>& wished_bytes = loads_[owner][load];
    for (const TableWish& wish : wishes) wished_bytes.insert(wish.bytes);
    stepped_.wait_for(lock, TableCopier::kStepPatience,
                      [&] { return copier_ == nullptr || !copier_->IsSteppingFor(owner); });
    if (copier_ != nullptr) copier_->GiveUpUnlessWished(owner, wishes);
    unwanted = TakeUnwantedCopy();
    RemoveSurplus(&useless);
    if (!useless.empty()) TellNeed(owner);
  }
  unwanted = nullptr;
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
    if (copier_ != nullptr) copier_->TryAgain();
    RemoveSurplus(&surplus);
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
    if (copier_ != nullptr && choice.source) {
      begun = copier_->TakeOver(wish, row_bytes, *permit);
    }
    if (begun == nullptr) claimed = Hold(choice, wish.is_written, {*permit});
  }
  GiveBack(std::move(unusable));
  if (begun != nullptr) return begun;
  if (claimed.table == nullptr) {
    auto made = MakeTable(wish, row_bytes);
    if (!made.ok()) return made.status();
    const std::lock_guard lock(mutex_);
    Shelve(std::move(made.value()), {*permit}, &claimed);
  }
  return std::unique_ptr<TableClaim>(
      new TableClaim(shared_from_this(), std::move(claimed), wish, row_bytes));
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

// Keeps the chosen table for a load, and the table that is copied from being written to or dropped.
// The result has no table if the load needs fresh memory. Takes the contents of a table that the
// load may write away in the same step, because a table without contents is shared by no load.
TableClaim::Claimed TableStore::Hold(const TableChoice& choice, bool is_written,
                                     const TableHolder& holder) {
  TableClaim::Claimed claimed;
  claimed.choice = choice;
  if (choice.use != TableUse::kFresh) {
    claimed.table = tables_[choice.index].get();
    claimed.hold = HoldFor(claimed.table, holder);
    if (choice.use != TableUse::kShare) {
      TableState& state = claimed.table->state;
      claimed.former_contents = std::exchange(state.contents, "");
      state.is_written = is_written;
    }
  }
  if (choice.source) {
    StoredTable* const source = tables_[*choice.source].get();
    claimed.source = source;
    claimed.source_hold = HoldFor(source, holder);
  }
  return claimed;
}

// Puts a new table among the others, as the one that was claimed.
void TableStore::Shelve(std::unique_ptr<StoredTable> made, const TableHolder& holder,
                        TableClaim::Claimed* claimed) {
  claimed->table = made.get();
  claimed->hold = HoldFor(made.get(), holder);
  tables_.push_back(std::move(made));
}

std::shared_ptr<TableHold> TableStore::HoldFor(StoredTable* table, const TableHolder& holder) {
  table->AddHolder(holder);
  return std::make_shared<TableHold>(shared_from_this(), table, holder);
}

// Makes what the keeper holds a load's.
void TableStore::HandOver(TableHold* hold, uint64_t load) {
  const TableHolder after{load};
  hold->table_->AddHolder(after);
  hold->table_->RemoveHolder(std::exchange(hold->holder_, after));
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
  table->state.is_written = wish.is_written;
  table->slab = std::move(slab.value());
  return table;
}

void TableStore::Release(StoredTable* table, const TableHolder& holder) {
  std::unique_ptr<TableClaim> unwanted;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    const std::string owner = table->state.owner;
    const bool is_unfinished_copy = table->is_copied_to();
    table->RemoveHolder(holder);
    table->state.released_at = ++release_count_;
    if (is_unfinished_copy) surplus.push_back(Remove(table));
    unwanted = TakeUnwantedCopy();
    RemoveSurplus(&surplus);
    if (!surplus.empty()) TellNeed(owner);
  }
  unwanted = nullptr;
  GiveBack(std::move(surplus));
}

void TableStore::SetContents(StoredTable* table, const std::string& contents) {
  const std::lock_guard lock(mutex_);
  table->state.contents = contents;
  table->state.changed_row_count = static_cast<int64_t>(table->log_count);
}

void TableStore::Expect(const std::string& owner, const VersionTables& tables) {
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_[owner] = tables;
    if (copier_ != nullptr) copier_->TryAgain();
    RemoveSurplus(&surplus);
    TellNeed(owner);
  }
  GiveBack(std::move(surplus));
}

void TableStore::Forget(const std::string& owner) {
  std::unique_ptr<TableClaim> unwanted;
  Slabs surplus;
  {
    const std::lock_guard lock(mutex_);
    versions_.erase(owner);
    unwanted = TakeUnwantedCopy();
    RemoveSurplus(&surplus);
    TellNeed(owner);
  }
  unwanted = nullptr;
  GiveBack(std::move(surplus));
}

// Tells the pool how much memory is missing for the written tables of the owner's next version. The
// pool never calls the store, so its mutex may be taken here.
void TableStore::TellNeed(const std::string& owner) {
  const auto version = versions_.find(owner);
  const size_t missing_bytes =
      version == versions_.end() ? 0 : version->second.MissingBytes(SlabBytesByOwner()[owner]);
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
  for (const auto& table : tables_) {
    const auto bytes = static_cast<int64_t>(table->state.bytes);
    if (table->is_copied_to()) {
      statistics.copying_bytes += bytes;
      continue;
    }
    const bool is_held = table->has_version();
    ++(is_held ? statistics.held_count : statistics.standby_count);
    (is_held ? statistics.held_bytes : statistics.standby_bytes) += bytes;
    if (!is_held && table->state.contents.empty()) ++statistics.dirty_count;
  }
  return statistics;
}

size_t TableStore::FreeBytes(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& table : tables_) {
    if (table->state.owner == owner && !table->has_version()) bytes += table->ResidentBytes();
  }
  return bytes;
}

std::vector<TableState> TableStore::States() const {
  std::vector<TableState> states;
  for (const auto& table : tables_) states.push_back(table->state);
  return states;
}

std::unique_ptr<Slab> TableStore::Remove(const StoredTable* table) {
  const auto place = std::find_if(tables_.begin(), tables_.end(),
                                  [table](const auto& other) { return other.get() == table; });
  return Remove(static_cast<size_t>(place - tables_.begin()));
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
void TableStore::RemoveSurplus(Slabs* removed) {
  std::map<std::string, std::optional<std::set<size_t>>> wished_bytes;
  for (const auto& [owner, version] : versions_) wished_bytes[owner];
  for (const auto& [owner, loads] : loads_) {
    if (versions_.count(owner) == 0) continue;
    std::set<size_t>& bytes = wished_bytes[owner].emplace();
    for (const auto& [load, wishes] : loads) bytes.insert(wishes.begin(), wishes.end());
  }
  Remove(ChooseUseless(States(), wished_bytes), removed);
  Remove(ChooseDropped(States(), kept_count_, VersionBytesMax()), removed);
}

size_t TableStore::VersionBytesMax() const {
  size_t bytes = 0;
  for (const auto& [owner, version] : versions_) bytes = std::max(bytes, version.bytes);
  return bytes;
}

void TableStore::GiveBack(Slabs slabs) {
  for (auto& slab : slabs) pool_->GiveBack(std::move(slab));
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
    const size_t bytes = std::min(version.MissingBytes(slab_bytes[owner]), left_bytes);
    const bool has_room = bytes > 0 && pool_->CanSpare(bytes, {owner, WrittenOwner(owner)});
    room_bytes[owner] = has_room ? bytes : 0;
  }
  return room_bytes;
}

std::unique_ptr<TableClaim> TableStore::TakeUnwantedCopy() {
  return copier_ == nullptr ? nullptr : copier_->TakeUnwanted();
}

}  // namespace millpond::memory
