#include "native/tf/shard_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "native/tf/crc32c.h"
#include "native/tf/status.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace millpond::tf {
namespace {

absl::Status FileError(const std::string& doing, const std::string& path) {
  return absl::ErrnoToStatus(errno, doing + " " + path);
}

}  // namespace

class ShardReader::File {
 public:
  File(int descriptor, const struct stat& status) : descriptor_(descriptor), status_(status) {}
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int64_t size_bytes() const { return status_.st_size; }
  ShardFile properties() const {
    const std::string times =
        std::to_string(status_.st_mtim.tv_sec) + '.' + std::to_string(status_.st_mtim.tv_nsec);
    return {std::to_string(status_.st_dev) + ' ' + std::to_string(status_.st_ino) + ' ' +
                std::to_string(status_.st_size) + ' ' + times,
            static_cast<int64_t>(status_.st_nlink)};
  }

  // Reads `bytes` at `offset`, or fewer at the end of the file. Returns the number of bytes read. A
  // negative result means an error in errno.
  ssize_t Read(int64_t offset, char* to, size_t bytes) const {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got =
          pread(descriptor_, to + done, bytes - done, offset + static_cast<int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return got;
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
  }

 private:
  const int descriptor_;
  const struct stat status_;
};

ShardReader::ShardReader(std::string prefix, int32_t shard_count)
    : prefix_(std::move(prefix)), files_(shard_count) {}
ShardReader::~ShardReader() = default;

std::string ShardReader::Path(int32_t shard) const {
  return tensorflow::DataFilename(prefix_, shard, static_cast<int32_t>(files_.size()));
}

std::string ShardReader::Place(const CheckpointEntry& entry) const {
  return "tensor '" + entry.name + "' at byte " + std::to_string(entry.offset_bytes) + " of " +
         Path(entry.shard);
}

absl::Status ShardReader::Open(int32_t shard) {
  if (files_[shard] != nullptr) return absl::OkStatus();
  const std::string path = Path(shard);
  // Non-blocking, because opening a pipe would wait for its writer. It changes nothing for a
  // regular file.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileError("opening", path);
  struct stat status {};
  const bool is_known = fstat(descriptor, &status) == 0;
  files_[shard] = std::make_unique<File>(descriptor, status);
  if (!is_known) return FileError("reading the status of", path);
  if (!S_ISREG(status.st_mode)) {
    files_[shard].reset();
    return absl::FailedPreconditionError(path + " is not a regular file");
  }
  // Doubles the usual read-ahead, for files that are not in the page cache yet.
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  return absl::OkStatus();
}

base::StatusOr<ShardFile> ShardReader::FileOf(int32_t shard) {
  const absl::Status opened = Open(shard);
  if (!opened.ok()) return FromTensorFlow(opened, "a shard");
  return files_[shard]->properties();
}

absl::Status ShardReader::CheckHolds(const CheckpointEntry& entry) {
  const absl::Status opened = Open(entry.shard);
  if (!opened.ok()) return opened;
  const int64_t end = entry.offset_bytes + entry.size_bytes;
  const int64_t size_bytes = files_[entry.shard]->size_bytes();
  if (end <= size_bytes) return absl::OkStatus();
  return absl::OutOfRangeError(Place(entry) + " ends at byte " + std::to_string(end) +
                               ", and the file has " + std::to_string(size_bytes));
}

absl::Status ShardReader::ReadPiece(const CheckpointEntry& entry, int64_t begin, size_t bytes,
                                    char* to, uint32_t* crc32c) {
  const int64_t offset = entry.offset_bytes + begin;
  const ssize_t got = files_[entry.shard]->Read(offset, to, bytes);
  if (got < 0) return FileError("reading " + Place(entry) + ":", "");
  if (static_cast<size_t>(got) < bytes) {
    return absl::OutOfRangeError(Place(entry) + ": the file was cut to " +
                                 std::to_string(offset + got) + " bytes while it was read");
  }
  *crc32c = ExtendCrc32c(*crc32c, to, bytes);
  return absl::OkStatus();
}

}  // namespace millpond::tf
