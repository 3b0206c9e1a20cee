#include "native/memory/table_claim.h"

#include <algorithm>

namespace millpond::memory {

TableClaim::TableClaim(std::shared_ptr<TableHome> home, Claimed claimed, const TableWish& wish,
                       size_t row_bytes)
    : home_(std::move(home)),
      table_(claimed.table),
      choice_(claimed.choice),
      contents_(wish.contents),
      bytes_(wish.bytes),
      row_bytes_(row_bytes),
      row_count_(wish.bytes / row_bytes),
      former_contents_(std::move(claimed.former_contents)),
      hold_(std::move(claimed.hold)),
      source_(claimed.source),
      source_rows_left_(claimed.source == nullptr ? 0 : claimed.source->log_count),
      source_hold_(std::move(claimed.source_hold)) {
  resident_bytes_ = is_writable() ? std::min(bytes_, table_->slab->ResidentBytes()) : wish.bytes;
}

TableClaim::~TableClaim() {
  if (has_written_) {
    Commit();
  } else if (is_writable()) {
    home_->SetContents(table_, former_contents_);
  }
}

std::byte* TableClaim::EntryOf(const StoredTable& table, size_t index) const {
  return table.slab->start() + LogOffset(bytes_) + index * LogEntryBytes(table.row_bytes);
}

void TableClaim::BeginOverwrite() {
  has_written_ = is_overwriting_ = true;
  BeginLog();
}

void TableClaim::BeginLog() {
  const size_t log_bytes = table_->slab->reserved_bytes() - LogOffset(bytes_);
  table_->row_bytes = row_bytes_;
  table_->log_capacity =
      std::min(LogCapacity(bytes_, row_bytes_), log_bytes / LogEntryBytes(row_bytes_));
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
  const std::shared_ptr<PagePinner> pinner = home_->pinner();
  if (pinner == nullptr) return;
  while (table_->slab->PinNext(RoundUp(bytes_, kPageBytes), pinner)) {
  }
}

void TableClaim::Commit() {
  if (!is_writable() || !has_written_ || is_overwriting_ || has_lost_contents_) return;
  home_->SetContents(table_, contents_);
}

}  // namespace millpond::memory
