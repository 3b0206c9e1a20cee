#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

// Where one tensor of a checkpoint lies. Its numbers are sound in themselves: the size is that of
// dtype and shape (of strings and variants it is at least one byte an element), nothing is
// negative, offset + size does not overflow, and the shard is one of the checkpoint's. Whether the
// shard is that long is for who reads it.
struct CheckpointEntry {
  std::string name;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  int32_t shard = 0;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  uint32_t crc32c = 0;  // of the bytes in the file, unmasked
  // Not empty: a partitioned tensor. Its bytes lie in an entry for each of these.
  std::vector<tensorflow::TensorSlice> slices;

  // One part of a partitioned tensor, which has an entry of its own for the whole. The name is
  // TensorFlow's code for tensor and slice then, which no tensor's name can be mistaken for.
  bool is_slice() const { return !name.empty() && name.front() == '\0'; }
};

// What a checkpoint's .index file says of the checkpoint itself.
struct CheckpointHeader {
  std::string index_path;
  int32_t shard_count = 1;
  bool is_big_endian = false;
};

// The .index file of the checkpoint `prefix`, open. One thread. Each block of the file is checked
// by its crc32c before it is believed; what does not hold together is DATA_LOSS with the file's
// name, and a file that cannot be opened is the file system's status, NOT_FOUND mostly.
class CheckpointIndexReader {
 public:
  static base::StatusOr<CheckpointIndexReader> Open(const std::string& prefix);

  CheckpointIndexReader(CheckpointIndexReader&&) noexcept;
  CheckpointIndexReader& operator=(CheckpointIndexReader&&) = delete;
  ~CheckpointIndexReader();

  const CheckpointHeader& header() const { return header_; }

  // The entry of that name, or NOT_FOUND. Neighbours in the order of names cost little, as their
  // block is already read: a microsecond or two. Opening takes 80 us, so an op of its own for
  // each tensor, as some graphs have, needs no cache of indexes.
  base::StatusOr<CheckpointEntry> Find(const std::string& name);

  // All entries in the order of their names. About 0.2 us each.
  base::StatusOr<std::vector<CheckpointEntry>> ReadAll();

 private:
  CheckpointIndexReader();
  base::Status OpenTable();
  base::Status ReadHeader();
  base::StatusOr<CheckpointEntry> CurrentEntry() const;
  base::Status Damaged(const std::string& what) const;

  CheckpointHeader header_;
  // In the order of construction: the iterator reads the table, and the table the file.
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

// What one element takes in a tensor, of a string or variant without what it points to; 0 for a
// dtype that no checkpoint holds.
int64_t ElementBytes(tensorflow::DataType dtype);

// What each restored tensor takes in memory, partitioned ones whole, in the order of the entries.
// By ElementBytes, so exact for numbers.
std::vector<size_t> TensorBytes(const CheckpointIndex& index);

// The least length of each shard in bytes: where its last tensor ends.
std::vector<int64_t> ShardBytesMin(const CheckpointIndex& index);

}  // namespace millpond::tf
