#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/restore_targets.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

class ShardReader;

// A large variable that may be kept in memory from one version to the next (table_store.h).
struct PlannedTable {
  RestoredTensor tensor;  // in the checkpoint
  std::string entry;      // the name of its bytes in the index
  std::string variable;
  std::string contents;  // ContentsOf
  size_t bytes = 0;
  size_t row_bytes = 0;
  bool is_written = false;  // the init op replaces rows of it, and does nothing else to it
};

// A large variable that would be a table if nothing else wrote to it. It is read whole.
struct UnkeptTable {
  std::string variable;
  size_t bytes = 0;
  std::string reason;
};

struct TablePlan {
  std::vector<PlannedTable> tables;
  std::vector<UnkeptTable> unkept;
};

// Smaller variables are read in less time than it takes to find out if they must be.
inline constexpr size_t kTableBytesMin = size_t{1} << 20;

// Finds the tables of a model whose checkpoint is `prefix`. A variable is a table
// - if it has kTableBytesMin or more, and is restored from the bytes of one entry: of a tensor, or
//   of the slice that a part of a partitioned variable was saved as,
// - if nothing writes to it but ResourceScatterUpdate in `init_op` ("" if there is none),
// - and if it has such a writer, or its file has several links. Only then may another version have
//   the same bytes.
// If `requests_may_write`, there are none. A variable of that size that `init_op` scatters into,
// and that is no table, is reported as unkept with the reason. Returns DATA_LOSS if the index does
// not parse.
base::StatusOr<TablePlan> PlanTables(const tensorflow::MetaGraphDef& meta_graph,
                                     const std::string& init_op, bool requests_may_write,
                                     const std::string& prefix);

// Returns the identity of an entry's bytes: device, inode, size and mtime of its file, and offset,
// size, crc32c, dtype and shape of the entry. Opens the file. Returns "" if it cannot be read.
std::string ContentsOf(const CheckpointEntry& entry, ShardReader* shards);

}  // namespace millpond::tf
