#include "native/tf/checkpoint_index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/checkpoint_files.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"
#include "xla/tsl/lib/hash/crc32c.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::StatusOr;
using tensorflow::BundleEntryProto;
using tensorflow::BundleHeaderProto;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;
using testing::IndexFile;
using testing::ReadFile;
using testing::Scalar;
using testing::TemporaryDirectory;
using testing::Vector;
using testing::WriteFile;

class CheckpointIndexTest : public ::testing::Test {
 protected:
  void WriteSmall() const {
    testing::WriteCheckpoint(prefix_, {{"a", Vector<float>({1, 2, 3})},
                                       {"b", Scalar<int64_t>(7)},
                                       {"c", Vector<tensorflow::tstring>({"mill", "pond"})}});
  }
  // Returns the index of WriteSmall with one entry changed.
  void WriteEdited(const std::string& key,
                   const std::function<void(BundleEntryProto*)>& edit) const {
    WriteSmall();
    IndexFile index(prefix_);
    index.Edit<BundleEntryProto>(key, edit);
    index.Write();
  }
  void ExpectDamaged(const std::string& in_message) const {
    const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix_);
    ASSERT_FALSE(index.ok()) << in_message;
    EXPECT_EQ(index.status().code(), Code::kDataLoss);
    EXPECT_NE(index.status().message().find(in_message), std::string::npos)
        << index.status().message();
    EXPECT_NE(index.status().message().find(index_path_), std::string::npos);
  }

  const TemporaryDirectory directory_;
  const std::string prefix_ = directory_.File("variables");
  const std::string index_path_ = prefix_ + ".index";
};

// Returns everything that was read, as text.
std::string Describe(const CheckpointIndex& index) {
  std::string text = std::to_string(index.header.shard_count) + " shards";
  for (const CheckpointEntry& entry : index.entries) {
    text += "; " + entry.name + " " + tensorflow::DataTypeString(entry.dtype) +
            entry.shape.DebugString() + " " + std::to_string(entry.shard) + ":" +
            std::to_string(entry.offset_bytes) + "+" + std::to_string(entry.size_bytes) + " " +
            std::to_string(entry.crc32c);
    for (const TensorSlice& slice : entry.slices) text += " " + slice.DebugString();
  }
  return text;
}

TEST_F(CheckpointIndexTest, EntriesMatchTheFileInOrderOfNames) {
  WriteSmall();
  const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix_);
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index.value().header.index_path, index_path_);
  EXPECT_EQ(index.value().header.shard_count, 1);
  EXPECT_FALSE(index.value().header.is_big_endian);
  ASSERT_EQ(index.value().entries.size(), 3);
  const CheckpointEntry& a = index.value().entries[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, tensorflow::DT_FLOAT);
  EXPECT_EQ(a.shape, TensorShape({3}));
  EXPECT_EQ(a.size_bytes, 12);
  const std::string shard = ReadFile(prefix_ + ".data-00000-of-00001");
  EXPECT_EQ(a.crc32c, tsl::crc32c::Value(shard.data() + a.offset_bytes, 12));
  EXPECT_EQ(index.value().entries[1].name, "b");
  EXPECT_EQ(index.value().entries[2].dtype, tensorflow::DT_STRING);
}

TEST_F(CheckpointIndexTest, OneEntryIsFoundByItsName) {
  WriteSmall();
  StatusOr<CheckpointIndexReader> reader = CheckpointIndexReader::Open(prefix_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  for (const char* name : {"c", "a", "b"}) {
    const StatusOr<CheckpointEntry> entry = reader.value().Find(name);
    ASSERT_TRUE(entry.ok()) << entry.status().message();
    EXPECT_EQ(entry.value().name, name);
  }
  for (const char* name : {"", "aa", "z"}) {
    const StatusOr<CheckpointEntry> missing = reader.value().Find(name);
    EXPECT_EQ(missing.ok() ? Code::kOk : missing.status().code(), Code::kNotFound) << name;
  }
}

TEST_F(CheckpointIndexTest, PartitionedTensorHasEntriesForWholeAndSlices) {
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), prefix_);
  for (const char* slice : {"0,1:-", "1,2:-"}) {
    const TensorSlice part = TensorSlice::ParseOrDie(slice);
    Tensor value(tensorflow::DT_FLOAT, {part.length(0), 5});
    ASSERT_TRUE(writer.AddSlice("p", TensorShape({3, 5}), part, value).ok());
  }
  ASSERT_TRUE(writer.Add("q", Scalar<float>(1)).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix_);
  ASSERT_TRUE(index.ok()) << index.status().message();
  ASSERT_EQ(index.value().entries.size(), 4);
  EXPECT_TRUE(index.value().entries[0].is_slice());
  EXPECT_TRUE(index.value().entries[1].is_slice());
  EXPECT_FALSE(index.value().entries[2].is_slice());
  EXPECT_EQ(index.value().entries[2].slices.size(), 2);
  EXPECT_EQ(TensorBytes(index.value()), (std::vector<size_t>{5 * 4, 2 * 5 * 4, 4}));
  EXPECT_EQ(ShardBytesMin(index.value()), std::vector<int64_t>{64});
}

TEST_F(CheckpointIndexTest, TensorBytesAreThoseInMemory) {
  WriteSmall();
  const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix_);
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(TensorBytes(index.value()),
            (std::vector<size_t>{12, 8, 2 * sizeof(tensorflow::tstring)}));
  const auto shard_bytes = static_cast<int64_t>(ReadFile(prefix_ + ".data-00000-of-00001").size());
  EXPECT_EQ(ShardBytesMin(index.value()), std::vector<int64_t>{shard_bytes});
}

TEST_F(CheckpointIndexTest, MissingFilesAreNotFound) {
  EXPECT_EQ(ReadCheckpointIndex(prefix_).status().code(), Code::kNotFound);
}

TEST_F(CheckpointIndexTest, AnyFlippedByteIsDataLossOrChangesNothing) {
  WriteSmall();
  const std::string whole = ReadFile(index_path_);
  const std::string expected = Describe(ReadCheckpointIndex(prefix_).value());
  size_t refused_count = 0;
  for (size_t position = 0; position < whole.size(); ++position) {
    for (const uint8_t bits : {0x01, 0x80, 0xFF}) {
      std::string flipped = whole;
      flipped[position] = static_cast<char>(flipped[position] ^ bits);
      WriteFile(index_path_, flipped);
      const StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix_);
      if (index.ok()) {
        ASSERT_EQ(Describe(index.value()), expected) << position;
        continue;
      }
      ASSERT_EQ(index.status().code(), Code::kDataLoss) << position;
      ++refused_count;
    }
  }
  // These bytes are never read: an empty block and the footer's padding.
  EXPECT_GE(refused_count, (whole.size() - 64) * 3);
}

TEST_F(CheckpointIndexTest, CutShortAtAnyByteIsDataLoss) {
  WriteSmall();
  const std::string whole = ReadFile(index_path_);
  for (size_t size = whole.size(); size-- > 0;) {
    testing::CutFile(index_path_, size);
    ASSERT_EQ(ReadCheckpointIndex(prefix_).status().code(), Code::kDataLoss) << size;
  }
}

TEST_F(CheckpointIndexTest, FooterBeyondTheFileIsDataLossWithoutAllocation) {
  WriteSmall();
  std::string index = ReadFile(index_path_);
  // The size of the metaindex block becomes a varint of 2^62.
  index.replace(index.size() - 48, 10, std::string("\x01\x80\x80\x80\x80\x80\x80\x80\x80\x40", 10));
  WriteFile(index_path_, index);
  ExpectDamaged("footer");
}

TEST_F(CheckpointIndexTest, InconsistentEntryIsDataLossWithItsName) {
  const std::vector<std::pair<std::function<void(BundleEntryProto*)>, std::string>> kEdits = {
      {[](auto* entry) { entry->set_offset(-1); }, "negative"},
      {[](auto* entry) { entry->set_size(-12); }, "negative"},
      {[](auto* entry) { entry->set_offset(std::numeric_limits<int64_t>::max()); }, "beyond any"},
      {[](auto* entry) { entry->set_size(11); }, "not its shape's"},
      {[](auto* entry) { entry->mutable_shape()->mutable_dim(0)->set_size(4); }, "not its shape's"},
      {[](auto* entry) { entry->mutable_shape()->mutable_dim(0)->set_size(-1); },
       "an invalid shape"},
      {[](auto* entry) { entry->mutable_shape()->set_unknown_rank(true); }, "an invalid shape"},
      {[](auto* entry) { entry->mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 62); },
       "beyond any memory"},
      {[](auto* entry) { entry->set_shard_id(1); }, "shard"},
      {[](auto* entry) { entry->set_shard_id(-1); }, "shard"},
      {[](auto* entry) { entry->set_dtype(tensorflow::DT_INVALID); }, "dtype"},
      {[](auto* entry) { entry->set_dtype(tensorflow::DT_RESOURCE); }, "dtype"},
      {[](auto* entry) { entry->set_dtype(tensorflow::DT_FLOAT_REF); }, "dtype"},
      {[](auto* entry) { entry->set_dtype(static_cast<tensorflow::DataType>(99)); }, "dtype"},
      {[](auto* entry) { entry->add_slices()->add_extent()->set_start(9); }, "slice"},
      {[](auto* entry) { entry->add_slices()->add_extent()->set_length(-7); }, "slice"},
      {[](auto* entry) { entry->add_slices(); }, "slice"},
  };
  for (const auto& [edit, in_message] : kEdits) {
    WriteEdited("a", edit);
    ExpectDamaged("'a' has");
    ExpectDamaged(in_message);
  }
}

TEST_F(CheckpointIndexTest, StringsWithLessThanAByteEachAreDataLoss) {
  WriteEdited("c", [](BundleEntryProto* entry) {
    entry->mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 40);
  });
  ExpectDamaged("'c' has a size below its shape's");
}

TEST_F(CheckpointIndexTest, AnEntryOrHeaderOfOtherBytesIsDataLoss) {
  for (const char* key : {"a", ""}) {
    WriteSmall();
    IndexFile index(prefix_);
    index.entries()[key] = "\xFF\xFF";
    index.Write();
    ExpectDamaged(*key == '\0' ? "no header" : "not an entry");
  }
  IndexFile index(prefix_);
  index.entries().erase("");
  index.Write();
  ExpectDamaged("no header");
}

TEST_F(CheckpointIndexTest, AHeaderWithAnImpossibleNumberOfShardsIsDataLoss) {
  for (const int32_t count : {-1, std::numeric_limits<int32_t>::max()}) {
    WriteSmall();
    IndexFile index(prefix_);
    index.Edit<BundleHeaderProto>("", [count](auto* header) { header->set_num_shards(count); });
    index.Write();
    ExpectDamaged("shards");
  }
}

// This is allowed: an exporter may write equal tensors once.
TEST_F(CheckpointIndexTest, TensorsMayShareBytes) {
  WriteSmall();
  IndexFile index(prefix_);
  index.entries()["d"] = index.entries()["a"];
  index.Write();
  const StatusOr<CheckpointIndex> read = ReadCheckpointIndex(prefix_);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().entries[3].offset_bytes, read.value().entries[0].offset_bytes);
}

}  // namespace
}  // namespace millpond::tf
