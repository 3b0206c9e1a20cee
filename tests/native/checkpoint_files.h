#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "xla/tsl/lib/io/iterator.h"
#include "xla/tsl/lib/io/table.h"
#include "xla/tsl/lib/io/table_builder.h"
#include "xla/tsl/lib/io/table_options.h"

namespace millpond::testing {

using NamedTensors = std::vector<std::pair<std::string, tensorflow::Tensor>>;

inline void WriteCheckpoint(const std::string& prefix, const NamedTensors& tensors) {
  tensorflow::BundleWriter writer(tensorflow::Env::Default(), prefix);
  for (const auto& [name, tensor] : tensors) ASSERT_TRUE(writer.Add(name, tensor).ok()) << name;
  ASSERT_TRUE(writer.Finish().ok());
}

// The index of the checkpoint `prefix` as keys and serialized protos. A test changes them as an
// exporter or a fault could have, and they are written back with right checksums. The header is
// under "".
class IndexFile {
 public:
  explicit IndexFile(const std::string& prefix) : path_(prefix + ".index") {
    auto* const env = tensorflow::Env::Default();
    uint64_t bytes = 0;
    EXPECT_TRUE(env->GetFileSize(path_, &bytes).ok());
    std::unique_ptr<tsl::RandomAccessFile> file;
    EXPECT_TRUE(env->NewRandomAccessFile(path_, &file).ok());
    tsl::table::Table* opened = nullptr;
    EXPECT_TRUE(tsl::table::Table::Open({}, file.get(), bytes, &opened).ok());
    const std::unique_ptr<tsl::table::Table> table(opened);
    const std::unique_ptr<tsl::table::Iterator> entry(table->NewIterator());
    for (entry->SeekToFirst(); entry->Valid(); entry->Next()) {
      entries_[std::string(entry->key())] = std::string(entry->value());
    }
  }

  std::map<std::string, std::string>& entries() { return entries_; }

  template <typename Proto>
  void Edit(const std::string& key, const std::function<void(Proto*)>& edit) {
    Proto proto;
    ASSERT_TRUE(proto.ParseFromString(entries_.at(key)));
    edit(&proto);
    entries_[key] = proto.SerializeAsString();
  }

  void Write() const {
    std::unique_ptr<tsl::WritableFile> file;
    ASSERT_TRUE(tensorflow::Env::Default()->NewWritableFile(path_, &file).ok());
    tsl::table::Options options;
    options.compression = tsl::table::kNoCompression;
    tsl::table::TableBuilder builder(options, file.get());
    for (const auto& [key, value] : entries_) builder.Add(key, value);
    ASSERT_TRUE(builder.Finish().ok());
    ASSERT_TRUE(file->Close().ok());
  }

 private:
  const std::string path_;
  std::map<std::string, std::string> entries_;
};

}  // namespace millpond::testing
