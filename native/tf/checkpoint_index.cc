#include "native/tf/checkpoint_index.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "native/base/regular_files.h"
#include "native/base/wire_reader.h"
#include "native/tf/status.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/versions.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/overflow.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "xla/tsl/lib/hash/crc32c.h"
#include "xla/tsl/lib/io/iterator.h"
#include "xla/tsl/lib/io/table.h"
#include "xla/tsl/lib/io/table_options.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::BundleEntryProto;

// The length of the file's footer: two block handles (offset and size, as varints), padding and a
// magic number.
constexpr size_t kFooterBytes = 48;
// The index of a million variables has some 100 MB.
constexpr uint64_t kIndexBytesMax = uint64_t{512} << 20U;
// compression and crc32c, which the handle's size leaves out
constexpr size_t kBlockTrailerBytes = 5;

// The most shards: the names of data files have five digits.
constexpr int32_t kShardCountMax = 99'999;

// Returns true if the footer's handles lie within the file. The footer is the only part of the file
// without a checksum, and Table trusts its sizes. So one wrong bit would make it allocate
// petabytes, which ends the process.
bool AreFooterHandlesWithin(std::string_view footer, uint64_t file_bytes) {
  base::WireReader reader(&footer, 1);
  for (int handle = 0; handle < 2; ++handle) {
    uint64_t offset = 0;
    uint64_t size = 0;
    if (!reader.ReadVarint(&offset) || !reader.ReadVarint(&size)) return false;
    if (offset > file_bytes || size > file_bytes - offset ||
        kBlockTrailerBytes > file_bytes - offset - size) {
      return false;
    }
  }
  return true;
}

int64_t MemoryBytes(const CheckpointEntry& entry) {
  return tensorflow::MultiplyWithoutOverflow(entry.shape.num_elements(), ElementBytes(entry.dtype));
}

// Returns the fault of the bytes that the entry refers to, or nullptr.
const char* SizeFault(const CheckpointEntry& entry) {
  if (entry.offset_bytes < 0 || entry.size_bytes < 0) return "a negative offset or size";
  if (entry.size_bytes > std::numeric_limits<int64_t>::max() - entry.offset_bytes) {
    return "a size beyond any file";
  }
  const int64_t memory_bytes = MemoryBytes(entry);
  if (memory_bytes < 0) return "a shape beyond any memory";
  if (!entry.slices.empty()) return nullptr;
  if (tensorflow::DataTypeCanUseMemcpy(entry.dtype)) {
    return entry.size_bytes == memory_bytes ? nullptr : "a size that is not its shape's";
  }
  return entry.size_bytes >= entry.shape.num_elements() ? nullptr : "a size below its shape's";
}

const char* ReadSlices(const BundleEntryProto& proto, CheckpointEntry* entry) {
  for (const auto& slice_proto : proto.slices()) {
    tensorflow::TensorSlice slice;
    tensorflow::TensorShape slice_shape;
    if (!tensorflow::TensorSlice::BuildTensorSlice(slice_proto, &slice).ok() ||
        !slice.SliceTensorShape(entry->shape, &slice_shape).ok()) {
      return "a slice outside its shape";
    }
    entry->slices.push_back(slice);
  }
  return nullptr;
}

// Fills `entry`, except for its name. Returns the fault of `proto`, or nullptr.
const char* ReadEntry(const BundleEntryProto& proto, int32_t shard_count, CheckpointEntry* entry) {
  if (!tensorflow::DataType_IsValid(proto.dtype()) || ElementBytes(proto.dtype()) == 0) {
    return "a dtype that no checkpoint holds";
  }
  if (proto.shape().unknown_rank() ||
      !tensorflow::TensorShape::BuildTensorShape(proto.shape(), &entry->shape).ok()) {
    return "an invalid shape";
  }
  if (proto.shard_id() < 0 || proto.shard_id() >= shard_count) return "a shard number out of range";
  entry->dtype = proto.dtype();
  entry->shard = proto.shard_id();
  entry->offset_bytes = proto.offset();
  entry->size_bytes = proto.size();
  entry->crc32c = tsl::crc32c::Unmask(proto.crc32c());
  if (const char* const fault = ReadSlices(proto, entry)) return fault;
  return SizeFault(*entry);
}

// Replaces unprintable bytes, which the name of a slice has.
std::string Printable(std::string_view name) {
  std::string printable(name.substr(0, 100));
  std::replace_if(
      printable.begin(), printable.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

}  // namespace

int64_t ElementBytes(tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_STRING) return sizeof(tensorflow::tstring);
  if (dtype == tensorflow::DT_VARIANT) return sizeof(tensorflow::Variant);
  return tensorflow::DataTypeCanUseMemcpy(dtype) ? tensorflow::DataTypeSize(dtype) : 0;
}

CheckpointIndexReader::CheckpointIndexReader() = default;
CheckpointIndexReader::CheckpointIndexReader(CheckpointIndexReader&&) noexcept = default;
CheckpointIndexReader::~CheckpointIndexReader() = default;

StatusOr<CheckpointIndexReader> CheckpointIndexReader::Open(const std::string& prefix) {
  CheckpointIndexReader reader;
  reader.header_.index_path = tensorflow::MetaFilename(prefix);
  MILLPOND_RETURN_IF_ERROR(reader.OpenTable());
  MILLPOND_RETURN_IF_ERROR(reader.ReadHeader());
  return reader;
}

Status CheckpointIndexReader::Damaged(const std::string& what) const {
  return base::DataLoss(header_.index_path + " does not parse: " + what);
}

Status CheckpointIndexReader::Unreadable(const absl::Status& read) const {
  if (IsOfContents(read)) return Damaged(std::string(read.message()));
  return FromTensorFlow(read, "reading " + header_.index_path);
}

Status CheckpointIndexReader::OpenTable() {
  auto* const env = tensorflow::Env::Default();
  const std::string opening = "opening " + header_.index_path;
  MILLPOND_RETURN_IF_ERROR(base::CheckRegularFile(header_.index_path));
  uint64_t file_bytes = 0;
  MILLPOND_RETURN_IF_TF_ERROR(env->GetFileSize(header_.index_path, &file_bytes), opening);
  MILLPOND_RETURN_IF_TF_ERROR(env->NewRandomAccessFile(header_.index_path, &file_), opening);
  if (file_bytes < kFooterBytes) return Damaged("it is too short");
  // A block is read whole, and its length is in the file itself.
  if (file_bytes > kIndexBytesMax) {
    return Damaged("it has " + std::to_string(file_bytes) + " bytes, and at most " +
                   std::to_string(kIndexBytesMax) + " are read of an index");
  }
  char scratch[kFooterBytes];
  absl::string_view footer;
  MILLPOND_RETURN_IF_TF_ERROR(
      file_->Read(file_bytes - kFooterBytes, footer, absl::MakeSpan(scratch)), opening);
  if (!AreFooterHandlesWithin({footer.data(), footer.size()}, file_bytes)) {
    return Damaged("its footer refers to bytes beyond its end");
  }
  tsl::table::Table* table = nullptr;
  const absl::Status opened = tsl::table::Table::Open({}, file_.get(), file_bytes, &table);
  table_.reset(table);
  if (!opened.ok()) return Unreadable(opened);
  iterator_.reset(table_->NewIterator());
  return {};
}

Status CheckpointIndexReader::ReadHeader() {
  iterator_->Seek(tensorflow::kHeaderEntryKey);
  tensorflow::BundleHeaderProto proto;
  const bool is_there = iterator_->Valid() && iterator_->key() == tensorflow::kHeaderEntryKey;
  if (!is_there || !proto.ParseFromArray(iterator_->value().data(),
                                         static_cast<int>(iterator_->value().size()))) {
    return Damaged("it has no header");
  }
  const absl::Status is_known =
      tensorflow::CheckVersions(proto.version(), tensorflow::kTensorBundleVersion,
                                tensorflow::kTensorBundleMinProducer, "Checkpoint", "checkpoint");
  MILLPOND_RETURN_IF_TF_ERROR(is_known, header_.index_path);
  if (proto.num_shards() < 0 || proto.num_shards() > kShardCountMax) {
    return Damaged("its header has " + std::to_string(proto.num_shards()) + " shards");
  }
  header_.shard_count = std::max(1, proto.num_shards());
  header_.is_big_endian = proto.endianness() == tensorflow::BundleHeaderProto::BIG;
  return {};
}

StatusOr<CheckpointEntry> CheckpointIndexReader::CurrentEntry() const {
  CheckpointEntry entry;
  entry.name = iterator_->key();
  BundleEntryProto proto;
  const absl::string_view value = iterator_->value();
  const char* const fault = proto.ParseFromArray(value.data(), static_cast<int>(value.size()))
                                ? ReadEntry(proto, header_.shard_count, &entry)
                                : "bytes that are not an entry";
  if (fault != nullptr) return Damaged("'" + Printable(entry.name) + "' has " + fault);
  return entry;
}

StatusOr<CheckpointEntry> CheckpointIndexReader::Find(const std::string& name) {
  iterator_->Seek(name);
  if (!iterator_->status().ok()) return Unreadable(iterator_->status());
  // "" is the name of the header
  if (name.empty() || !iterator_->Valid() || iterator_->key() != name) {
    return base::NotFound("tensor '" + Printable(name) + "' is not in " + header_.index_path);
  }
  return CurrentEntry();
}

StatusOr<std::vector<CheckpointEntry>> CheckpointIndexReader::ReadAll() {
  std::vector<CheckpointEntry> entries;
  iterator_->Seek(tensorflow::kHeaderEntryKey);
  for (iterator_->Next(); iterator_->Valid(); iterator_->Next()) {
    StatusOr<CheckpointEntry> entry = CurrentEntry();
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(entry.value()));
  }
  // An unreadable block ends the iteration in the same way as the last entry.
  if (!iterator_->status().ok()) return Unreadable(iterator_->status());
  return entries;
}

StatusOr<CheckpointIndex> ReadCheckpointIndex(const std::string& prefix) {
  StatusOr<CheckpointIndexReader> reader = CheckpointIndexReader::Open(prefix);
  if (!reader.ok()) return reader.status();
  StatusOr<std::vector<CheckpointEntry>> entries = reader.value().ReadAll();
  if (!entries.ok()) return entries.status();
  return CheckpointIndex{reader.value().header(), std::move(entries.value())};
}

std::vector<size_t> TensorBytes(const CheckpointIndex& index) {
  std::vector<size_t> bytes;
  for (const CheckpointEntry& entry : index.entries) {
    if (entry.slices.empty()) bytes.push_back(static_cast<size_t>(MemoryBytes(entry)));
  }
  return bytes;
}

std::vector<int64_t> ShardBytesMin(const CheckpointIndex& index) {
  std::vector<int64_t> bytes(index.header.shard_count, 0);
  for (const CheckpointEntry& entry : index.entries) {
    int64_t& shard_bytes = bytes[entry.shard];
    shard_bytes = std::max(shard_bytes, entry.offset_bytes + entry.size_bytes);
  }
  return bytes;
}

}  // namespace millpond::tf
