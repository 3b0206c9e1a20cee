#include "native/memory/stored_table.h"

#include <algorithm>

namespace millpond::memory {
namespace {

// A log that is longer costs more than reading the table.
constexpr size_t kLoggedRowsShare = 4;

}  // namespace

size_t LogOffset(size_t bytes) { return RoundUp(bytes, kSlabUnitBytes); }

size_t LogEntryBytes(size_t row_bytes) { return sizeof(int64_t) + row_bytes; }

size_t LogCapacity(size_t bytes, size_t row_bytes) { return bytes / row_bytes / kLoggedRowsShare; }

size_t LogBytesMax(size_t bytes, size_t row_bytes) {
  return LogCapacity(bytes, row_bytes) * LogEntryBytes(row_bytes);
}

size_t TableSlabBytes(size_t bytes, size_t row_bytes) {
  return LogOffset(bytes) + RoundUp(LogBytesMax(bytes, row_bytes), kSlabUnitBytes);
}

void VersionTables::Add(size_t table_bytes, size_t row_bytes, bool is_written) {
  bytes += table_bytes;
  slab_bytes += LogOffset(table_bytes);
  if (!is_written) return;
  written_slab_bytes += LogOffset(table_bytes);
  log_bytes_max += TableSlabBytes(table_bytes, row_bytes) - LogOffset(table_bytes);
}

size_t VersionTables::MissingBytes(size_t held_slab_bytes) const {
  const size_t wanted_bytes = slab_bytes + written_slab_bytes * static_cast<size_t>(serving_count);
  return std::min(written_slab_bytes, wanted_bytes - std::min(wanted_bytes, held_slab_bytes));
}

size_t StoredTable::ResidentBytes() const {
  if (!state.contents.empty()) return state.bytes;
  return std::min(state.bytes, slab->ResidentBytes(state.bytes));
}

void StoredTable::AddHolder(const TableHolder& holder) {
  loads.insert(holder.load);
  newest_load = std::max(newest_load, holder.load);
  ++state.holder_count;
  if (holder.is_keeper) ++keeper_count;
  state.load = *loads.rbegin();
}

void StoredTable::RemoveHolder(const TableHolder& holder) {
  loads.erase(loads.find(holder.load));
  --state.holder_count;
  if (holder.is_keeper) --keeper_count;
  state.load = loads.empty() ? newest_load : *loads.rbegin();
}

}  // namespace millpond::memory
