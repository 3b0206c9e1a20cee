#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "native/base/status.h"
#include "native/tf/checkpoint_index.h"

namespace millpond::tf {

// A data file, as the file system has it.
struct ShardFile {
  // Device, inode, size and modification time. Two files with one identity have the same bytes,
  // unless somebody has written to the file and set its time back.
  std::string identity;
  int64_t link_count = 0;  // the names of the file
};

// The data files of one checkpoint on a local disk. Each file is opened on first use and closed
// with this object. One thread. Reads with pread, because a file that shrinks meanwhile then causes
// an error, and in a mapped file a SIGBUS.
class ShardReader {
 public:
  // The bytes of one read: about 50 us from the page cache. They take a quarter of a core's L2
  // cache, so the checksum still finds them there.
  static constexpr size_t kPieceBytes = 256 << 10;

  ShardReader(std::string prefix, int32_t shard_count);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // Returns the data file of a shard, as it was when it was opened.
  base::StatusOr<ShardFile> FileOf(int32_t shard);

  // Returns OUT_OF_RANGE with both lengths if the shard ends before the entry's last byte.
  absl::Status CheckHolds(const CheckpointEntry& entry);

  // Reads `bytes` of the entry, from `begin` on, to `to`. Extends `*crc32c` by them. After
  // CheckHolds. Makes one copy, which is the kernel's copy from the page cache. Reads that bypass
  // the caches (non-temporal stores, prefetchnta from a mapped file) were slower and did not help
  // requests.
  absl::Status ReadPiece(const CheckpointEntry& entry, int64_t begin, size_t bytes, char* to,
                         uint32_t* crc32c);

  // Returns a text like "tensor 'w' at byte 96 of /m/7/variables/variables.data-00000-of-00001",
  // for messages.
  std::string Place(const CheckpointEntry& entry) const;

 private:
  class File;
  absl::Status Open(int32_t shard);
  std::string Path(int32_t shard) const;

  const std::string prefix_;
  std::vector<std::unique_ptr<File>> files_;  // null: not opened yet
};

}  // namespace millpond::tf
