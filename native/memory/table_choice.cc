#include "native/memory/table_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

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

// The owner, contents and size of a table, which its copies have in common.
using CopyKey = std::tuple<std::string_view, std::string_view, size_t>;

CopyKey KeyOf(const TableState& table) { return {table.owner, table.contents, table.bytes}; }

// Returns the table without a holder that a copy of `source` may replace. `held`: those that may
// not be replaced, because the next load may want a copy of them.
std::optional<size_t> FindReplaceable(const TableState& source, const std::set<CopyKey>& held,
                                      const std::vector<TableState>& tables) {
  std::optional<size_t> found;
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableState& table = tables[i];
    if (table.owner != source.owner || table.bytes != source.bytes || table.holder_count > 0) {
      continue;
    }
    if (!table.contents.empty() && held.count(KeyOf(table)) > 0) continue;
    constexpr TableUse kUse = TableUse::kOverwrite;
    if (found && Rank(kUse, tables[*found]) <= Rank(kUse, table)) continue;
    found = i;
  }
  return found;
}

// Returns false if versions that were loaded after those of the table hold tables, and none of its
// size, as after a file with grown tables.
bool IsUsefulAtRest(const TableState& free, const std::vector<TableState>& tables) {
  bool has_newer = false;
  for (const TableState& table : tables) {
    if (table.owner != free.owner || table.holder_count == 0 || table.load <= free.load) continue;
    if (table.bytes == free.bytes) return true;
    has_newer = true;
  }
  return !has_newer;
}

}  // namespace

std::optional<TableChoice> ChooseCopyAhead(const std::vector<TableState>& tables,
                                           const std::map<std::string, size_t>& room_bytes) {
  std::set<CopyKey> held;
  std::set<CopyKey> free;
  for (const TableState& table : tables) {
    (table.holder_count > 0 ? held : free).insert(KeyOf(table));
  }
  for (const TableState& table : tables) {
    const auto room = room_bytes.find(table.owner);
    if (room == room_bytes.end() || !table.is_written || table.contents.empty()) continue;
    if (table.holder_count == 0 || free.count(KeyOf(table)) > 0) continue;
    TableChoice choice;
    choice.source = FindSource({table.owner, table.contents, table.bytes, true}, tables);
    if (const auto replaced = FindReplaceable(table, held, tables)) {
      choice.use = TableUse::kOverwrite;
      choice.index = *replaced;
      return choice;
    }
    if (room->second >= table.bytes) return choice;
  }
  return std::nullopt;
}

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

std::vector<size_t> ChooseUseless(
    const std::vector<TableState>& tables,
    const std::map<std::string, std::optional<std::set<size_t>>>& wished_bytes) {
  std::vector<size_t> useless;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].holder_count > 0) continue;
    const auto owner = wished_bytes.find(tables[i].owner);
    const bool is_useful =
        owner != wished_bytes.end() && (owner->second ? owner->second->count(tables[i].bytes) > 0
                                                      : IsUsefulAtRest(tables[i], tables));
    if (!is_useful) useless.push_back(i);
  }
  return useless;
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
