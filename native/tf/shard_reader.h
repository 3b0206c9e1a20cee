#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "native/tf/checkpoint_index.h"

namespace millpond::tf {

// The data files of one checkpoint on a local disk, each opened when it is first asked for and
// closed with this object. One thread. Reads are plain preads: a file that shrinks under us is an
// error, where a mapped one would be a SIGBUS.
class ShardReader {
 public:
  // What to read at once: about 50 us from the page cache, and a quarter of a core's L2 cache, in
  // which the checksum still finds it.
  static constexpr size_t kPieceBytes = 256 << 10;

  ShardReader(std::string prefix, int32_t shard_count);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // OUT_OF_RANGE with both figures where the shard ends before the entry's last byte.
  absl::Status CheckHolds(const CheckpointEntry& entry);

  // Reads `bytes` of the entry from `begin` on to `to`, and extends `*crc32c` by them. After
  // CheckHolds. The kernel's copy from the page cache is the only one. Ways that spare the caches
  // (non-temporal stores, prefetchnta from a mapped file) were slower and no better for requests:
  // restore_bench.
  absl::Status ReadPiece(const CheckpointEntry& entry, int64_t begin, size_t bytes, char* to,
                         uint32_t* crc32c);

  // "tensor 'w' at byte 96 of /m/7/variables/variables.data-00000-of-00001", for messages.
  std::string Place(const CheckpointEntry& entry) const;

 private:
  class File;
  absl::Status Open(int32_t shard);
  std::string Path(int32_t shard) const;

  const std::string prefix_;
  std::vector<std::unique_ptr<File>> files_;  // null: not opened yet
};

}  // namespace millpond::tf
