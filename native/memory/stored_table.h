#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "native/memory/slab.h"
#include "native/memory/table_choice.h"

namespace millpond::memory {

// The tables of one version.
struct VersionTables {
  size_t bytes = 0;
  // In whole units of the slabs, without the logs: of all tables, and of those that the init op
  // writes to.
  size_t slab_bytes = 0;
  size_t written_slab_bytes = 0;
  size_t log_bytes_max = 0;  // the addresses of the logs
  int serving_count = 1;     // versions that the owner serves at rest

  void Add(size_t table_bytes, size_t row_bytes, bool is_written);
  // Returns the memory that is missing for a copy of the written tables besides those of the
  // versions that the owner serves at rest. `held_slab_bytes`: of all tables that it has.
  size_t MissingBytes(size_t held_slab_bytes) const;
};

// The table begins its slab, and its log begins at the next unit: here.
size_t LogOffset(size_t bytes);
// An entry of a log: the id of a row, and its former bytes.
size_t LogEntryBytes(size_t row_bytes);
// The entries that a log may have.
size_t LogCapacity(size_t bytes, size_t row_bytes);
// The memory that the log of a table may take.
size_t LogBytesMax(size_t bytes, size_t row_bytes);
// The addresses of a table and its log.
size_t TableSlabBytes(size_t bytes, size_t row_bytes);

// A load and its version, or the keeper, which copies ahead: it keeps a table from being written to
// or dropped. The keeper has the load of the version whose table it copies.
struct TableHolder {
  uint64_t load = 0;
  bool is_keeper = false;
};

// A table, in the store alone.
struct StoredTable {
  TableState state;
  std::unique_ptr<Slab> slab;
  size_t row_bytes = 0;
  // The entries that the log may have, and those that it has.
  size_t log_capacity = 0;
  size_t log_count = 0;
  std::multiset<uint64_t> loads;  // of the holders
  uint64_t newest_load = 0;       // that ever held it
  int keeper_count = 0;           // of the holders

  void AddHolder(const TableHolder& holder);
  void RemoveHolder(const TableHolder& holder);
  // True if a load or a version holds it.
  bool has_version() const { return state.holder_count > keeper_count; }
  // Returns the bytes of the table that are in memory. A table without contents is measured,
  // because a load may have failed before it wrote all of it (Slab::ResidentBytes).
  size_t ResidentBytes() const;
  // True if the keeper fills it with a copy.
  bool is_copied_to() const { return keeper_count > 0 && !has_version() && state.contents.empty(); }
};

}  // namespace millpond::memory
