#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace millpond::memory {

// The table that a load wants in memory.
struct TableWish {
  std::string owner;     // the model
  std::string contents;  // the identity of the bytes in the checkpoint
  size_t bytes = 0;
  bool is_written = false;  // the load will write rows of it
};

// The state of one table in memory, at one moment.
struct TableState {
  std::string owner;
  std::string contents;  // the bytes without the changed rows; "" if they are not known
  size_t bytes = 0;
  int64_t changed_row_count = 0;  // rows that an init op has written over, and that can be undone
  int holder_count = 0;           // of loads and versions
  uint64_t released_at = 0;       // orders the tables by the moment when their last holder let go
  bool is_written = false;        // the init op of its version may write rows of it
  // Orders the loads by their begin: the newest one among those whose versions hold the table, or
  // among all that it has had if there is none.
  uint64_t load = 0;
};

// How a load gets a table.
enum class TableUse {
  kShare,      // another holder reads the same memory
  kUndo,       // memory without a holder, whose changed rows are undone
  kOverwrite,  // memory without a holder, into which a held table is copied or the checkpoint read
  kFresh,      // new memory, for the same
};

// Why a load must read a table from the checkpoint.
enum class ReadReason {
  kNone,       // it need not
  kFirst,      // no version of the model had the table
  kUnknown,    // no load has filled a copy to its end, or one replaced too many rows
  kOtherFile,  // all copies are of another file, or of another place in it
};

struct TableChoice {
  TableUse use = TableUse::kFresh;
  ReadReason reason = ReadReason::kNone;
  size_t index = 0;  // of the table in the list; unused for kFresh
  // The held table that kOverwrite and kFresh copy; none if they read the checkpoint.
  std::optional<size_t> source = std::nullopt;
};

// Decides how a load gets a table out of the `tables` in memory.
//
// Promises:
// - A table that has a holder is chosen for kShare alone, and only if no load will write to it.
//   This load does not, and its holders no longer do, because its contents are known.
// - A table is chosen for kShare or kUndo, or to be copied, only if it is the owner's, has the
//   wanted contents, and for kShare no changed rows.
// - Copies a table only if none can be shared or undone, and the one with the fewest changed rows.
// - Reads the checkpoint only if no table has the wanted contents.
TableChoice ChooseTable(const TableWish& wish, const std::vector<TableState>& tables);

// Decides which held table is copied ahead, for the next load that writes its rows. Returns a
// choice of kOverwrite or kFresh with a source, or nullopt if nothing is to be copied.
// `room_bytes`: the fresh memory that a copy may take, by owner. Nothing is copied of others.
//
// Promises:
// - Copies only a table with a holder and known contents, of which the next load may write rows.
//   No table without a holder has these contents. So the load would make the same copy.
// - Writes over a table without a holder only if no held table of the owner has its contents.
std::optional<TableChoice> ChooseCopyAhead(const std::vector<TableState>& tables,
                                           const std::map<std::string, size_t>& room_bytes);

// Returns the indices of the tables without a holder that are of no use, ascending.
// `wished_bytes`: the sizes of the tables that loads under way want, for each known owner. An owner
// without a load under way has an empty optional.
//
// Promises:
// - Each table of an owner that is not known is of no use.
// - While an owner loads, its tables are of use if they have a size that it wants.
// - At rest a table is of use unless versions that were loaded after all of its own have tables,
// but
//   none of its size. So the order in which a version's tables are freed does not matter, and what
//   the newest version leaves is of use.
std::vector<size_t> ChooseUseless(
    const std::vector<TableState>& tables,
    const std::map<std::string, std::optional<std::set<size_t>>>& wished_bytes);

// Returns the indices of the tables that are dropped, in this order. At most `kept_count` times the
// bytes of the owner with the largest version may have no holder. A table with unknown contents
// goes first, then the one that was released the longest time ago.
// `version_bytes_max`: the tables of the largest version.
std::vector<size_t> ChooseDropped(const std::vector<TableState>& tables, size_t kept_count,
                                  size_t version_bytes_max);

}  // namespace millpond::memory
