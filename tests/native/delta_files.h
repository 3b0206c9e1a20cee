#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/native/saved_model_files.h"

namespace millpond::testing {

// Rows of a table that a delta replaces. The ids may repeat; the last row counts.
struct ChangedRows {
  std::vector<int64_t> ids;
  float value = 0;  // of each new element; the row's place in the list is added
};

// Writes versions whose tables are the same file, as millpond.delta does: two
// tables of kRowCount x kWidth floats in a shard of their own, and in another shard the dense
// variable, the ids and the rows, which the init op scatters into the tables.
//
// Signatures: serving_default (ids -> y: the rows of both tables, and the dense variable), and
// "tables" (-> t0, t1: all of both).
class DeltaFiles {
 public:
  static constexpr int64_t kRowCount = 4200;
  static constexpr int64_t kWidth = 64;  // so that a table has a little more than 1 MiB
  static constexpr int kTableCount = 2;

  // The writes of a model to its tables beside the scatter.
  enum class Writer {
    kScatterOnly,
    kNone,          // no scatter either
    kAlsoAssigned,  // the init op assigns table 0 a second time
    kByRequests,    // a signature adds to table 0
  };

  explicit DeltaFiles(std::string root, Writer writer = Writer::kScatterOnly)
      : root_(std::move(root)), writer_(writer) {}

  // Writes the shard of new tables, whose elements follow from `seed`.
  void NewBase(int seed);
  // Writes a version of the last base to `directory`.
  void WriteVersion(const std::string& directory, const std::vector<ChangedRows>& changes,
                    float dense) const;
  // The file with the tables.
  std::string TablesPath() const { return part() + ".data-00000-of-00001"; }
  static std::string ShardOf(const std::string& directory, int shard) {
    return directory + "/variables/variables.data-0000" + std::to_string(shard) + "-of-00002";
  }

 private:
  std::string part() const { return root_ + "/base" + std::to_string(base_count_) + "/part"; }
  SavedModelFiles Graph() const;

  const std::string root_;
  const Writer writer_;
  int base_count_ = 0;
};

}  // namespace millpond::testing
