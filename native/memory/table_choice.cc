#include "native/memory/table_choice.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace millpond::memory {
namespace {

bool IsCandidate(const TableWish& wish, const TableState& table) {
  return table.owner == wish.owner && table.bytes == wish.bytes;
}

bool HasContents(const TableWish& wish, const TableState& table) {
  return !wish.contents.empty() && table.contents == wish.contents;
}

// Returns the use that `wish` could make of the table, or nullopt if it must not touch it.
std::optional<TableUse> UseOf(const TableWish& wish, const TableState& table) {
  const bool has_contents = HasContents(wish, table);
  if (has_contents && table.changed_row_count == 0 && !wish.is_written) return TableUse::kShare;
  if (table.holder_count > 0) return std::nullopt;
  return has_contents ? TableUse::kUndo : TableUse::kOverwrite;
}

// Orders the candidates: the use first, then the fewest rows to undo. Memory that is overwritten is
// the memory with unknown contents, or else what was released the longest time ago.
auto Rank(TableUse use, const TableState& table) {
  return std::tuple(use, use == TableUse::kUndo ? table.changed_row_count : 0,
                    use == TableUse::kOverwrite && !table.contents.empty(), table.released_at);
}

// Returns the table that is copied if none can be shared or undone.
std::optional<size_t> FindSource(const TableWish& wish, const std::vector<TableState>& tables) {
  std::optional<size_t> source;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!IsCandidate(wish, tables[i]) || !HasContents(wish, tables[i])) continue;
    if (source && tables[*source].changed_row_count <= tables[i].changed_row_count) continue;
    source = i;
  }
  return source;
}

ReadReason ReasonOf(const TableWish& wish, const std::vector<TableState>& tables) {
  ReadReason reason = ReadReason::kFirst;
  for (const TableState& table : tables) {
    if (!IsCandidate(wish, table)) continue;
    if (table.contents.empty()) return ReadReason::kUnknown;
    reason = ReadReason::kOtherFile;
  }
  return reason;
}

}  // namespace

TableChoice ChooseTable(const TableWish& wish, const std::vector<TableState>& tables) {
  std::optional<TableChoice> best;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!IsCandidate(wish, tables[i])) continue;
    const std::optional<TableUse> use = UseOf(wish, tables[i]);
    if (!use) continue;
    if (best && Rank(best->use, tables[best->index]) <= Rank(*use, tables[i])) continue;
    best = TableChoice{*use, ReadReason::kNone, i};
  }
  TableChoice choice = best.value_or(TableChoice{});
  if (choice.use == TableUse::kShare || choice.use == TableUse::kUndo) return choice;
  choice.source = FindSource(wish, tables);
  if (!choice.source) choice.reason = ReasonOf(wish, tables);
  return choice;
}

std::vector<size_t> ChooseDropped(const std::vector<TableState>& tables, size_t kept_count,
                                  size_t version_bytes_max) {
  std::vector<size_t> free;
  size_t free_bytes = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].holder_count > 0) continue;
    free.push_back(i);
    free_bytes += tables[i].bytes;
  }
  std::sort(free.begin(), free.end(), [&](size_t a, size_t b) {
    return std::tuple(!tables[a].contents.empty(), tables[a].released_at) <
           std::tuple(!tables[b].contents.empty(), tables[b].released_at);
  });
  std::vector<size_t> dropped;
  for (const size_t index : free) {
    if (free_bytes <= kept_count * version_bytes_max) break;
    free_bytes -= tables[index].bytes;
    dropped.push_back(index);
  }
  return dropped;
}

}  // namespace millpond::memory
