#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "native/base/status.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"

namespace tsl {
class RandomAccessFile;
namespace table {
class Iterator;
class Table;
}  // namespace table
}  // namespace tsl

namespace millpond::tf {

// The place of one tensor in a checkpoint. Its numbers are consistent: the size matches dtype and
// shape (for strings and variants it is at least one byte an element). No number is negative,
// offset + size does not overflow, and the checkpoint has the shard. The reader of the shard checks
// the shard's length.
struct CheckpointEntry {
  std::string name;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  int32_t shard = 0;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  uint32_t crc32c = 0;  // of the bytes in the file, unmasked
  // The slices of a partitioned tensor; otherwise empty. The bytes of each slice lie in an entry of
  // its own.
  std::vector<tensorflow::TensorSlice> slices;

  // True if this is a slice of a partitioned tensor, which has another entry for the whole. Its
  // name is then TensorFlow's encoding of tensor and slice, which differs from the name of every
  // tensor.
  bool is_slice() const { return !name.empty() && name.front() == '\0'; }
};

// The properties of a checkpoint that its .index file stores.
struct CheckpointHeader {
  std::string index_path;
  int32_t shard_count = 1;
  bool is_big_endian = false;
};

// The open .index file of the checkpoint `prefix`. One thread. Checks the crc32c of each block
// before it uses the block. Returns DATA_LOSS with the file's name for inconsistent contents. If
// the file cannot be opened, returns the file system's status, mostly NOT_FOUND.
class CheckpointIndexReader {
 public:
  static base::StatusOr<CheckpointIndexReader> Open(const std::string& prefix);

  CheckpointIndexReader(CheckpointIndexReader&&) noexcept;
  CheckpointIndexReader& operator=(CheckpointIndexReader&&) = delete;
  ~CheckpointIndexReader();

  const CheckpointHeader& header() const { return header_; }

  // Returns the entry with that name, or NOT_FOUND. Takes a microsecond or two if the entry before
  // was a neighbour in the order of names, because their block is already read. Opening takes 80
  // us. So a graph with a restore op for each tensor needs no cache of indexes.
  base::StatusOr<CheckpointEntry> Find(const std::string& name);

  // Returns all entries in the order of their names. About 0.2 us each.
  base::StatusOr<std::vector<CheckpointEntry>> ReadAll();

 private:
  CheckpointIndexReader();
  base::Status OpenTable();
  base::Status ReadHeader();
  base::StatusOr<CheckpointEntry> CurrentEntry() const;
  base::Status Damaged(const std::string& what) const;
  // The status of a read that has failed: damage, or an error of the disk with its code.
  base::Status Unreadable(const absl::Status& read) const;

  CheckpointHeader header_;
  // In the order of construction: the iterator reads the table, and the table reads the file.
  std::unique_ptr<tsl::RandomAccessFile> file_;
  std::unique_ptr<tsl::table::Table> table_;
  std::unique_ptr<tsl::table::Iterator> iterator_;
};

// The whole index as a value.
struct CheckpointIndex {
  CheckpointHeader header;
  std::vector<CheckpointEntry> entries;  // in the order of their names
};

base::StatusOr<CheckpointIndex> ReadCheckpointIndex(const std::string& prefix);

// Returns the size of one element in a tensor; for a string or variant, without the data that it
// points to. Returns 0 for a dtype that no checkpoint holds.
int64_t ElementBytes(tensorflow::DataType dtype);

// Returns the size of each restored tensor in memory, in the order of the entries. Each slice of a
// partitioned tensor is one. Based on ElementBytes, so exact for numbers.
std::vector<size_t> TensorBytes(const CheckpointIndex& index);

// Returns the least length of each shard in bytes, which is the end of its last tensor.
std::vector<int64_t> ShardBytesMin(const CheckpointIndex& index);

}  // namespace millpond::tf
