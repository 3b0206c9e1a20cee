#include "native/tf/record_frames.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "native/servable/request_log.h"
#include "xla/tsl/lib/io/record_reader.h"
#include "xla/tsl/platform/env.h"

namespace millpond::tf {
namespace {

// Reads the records of a file's bytes as TensorFlow does.
std::vector<std::string> ReadByTensorFlow(const std::string& frames) {
  tsl::Env* const env = tsl::Env::Default();
  const std::string path = ::testing::TempDir() + "record_frames_test.tfrecord";
  EXPECT_TRUE(tsl::WriteStringToFile(env, path, frames).ok());
  std::unique_ptr<tsl::RandomAccessFile> file;
  EXPECT_TRUE(env->NewRandomAccessFile(path, &file).ok());
  tsl::io::RecordReader reader(file.get());
  std::vector<std::string> records;
  tsl::uint64 offset = 0;
  tsl::tstring record;
  while (reader.ReadRecord(&offset, &record).ok()) records.emplace_back(record);
  EXPECT_EQ(offset, frames.size());
  EXPECT_TRUE(env->DeleteFile(path).ok());
  return records;
}

void PutText(servable::RequestLog& log, const std::string& text, int64_t version = 0) {
  servable::LoggedRequest request;
  request.version = version;
  log.Put(request, text.size(), [&](char* to) { text.copy(to, text.size()); });
}

TEST(RecordFrames, TensorFlowReadsThem) {
  const std::vector<std::string> records = {"", "one", std::string(100'000, 'x')};
  std::string frames;
  for (const std::string& record : records) AppendRecordFrame(record, &frames);
  EXPECT_EQ(ReadByTensorFlow(frames), records);
}

TEST(RecordFrames, BatchesKeepTheLogsApart) {
  const auto queue = std::make_shared<servable::RecordQueue>(4096);
  servable::RequestLog first(queue, 1);
  servable::RequestLog second(queue, 2);
  PutText(second, "b", 20);
  PutText(first, "a", 10);
  PutText(second, "c", 21);
  const std::vector<LoggedBatch> batches = ReadLoggedBatches(*queue, SIZE_MAX).batches;
  ASSERT_EQ(batches.size(), 2);
  EXPECT_EQ(batches[0].log_id, 1);
  EXPECT_EQ(batches[1].log_id, 2);
  EXPECT_EQ(batches[1].record_count, 2);
  EXPECT_EQ(ReadByTensorFlow(batches[1].frames), (std::vector<std::string>{"b", "c"}));
  servable::LoggedRequest heads[2];
  ASSERT_EQ(batches[1].heads.size(), sizeof heads);
  std::memcpy(heads, batches[1].heads.data(), sizeof heads);
  EXPECT_EQ(heads[0].version, 20);
  EXPECT_EQ(heads[1].version, 21);
}

TEST(RecordFrames, ReadRecordsStayInTheQueue) {
  const auto queue = std::make_shared<servable::RecordQueue>(4096);
  servable::RequestLog log(queue, 1);
  for (const char* const text : {"a", "b", "c"}) PutText(log, text);
  const size_t entry_bytes = queue->used_bytes() / 3;
  const auto read = [&] { return ReadLoggedBatches(*queue, 2 * entry_bytes); };
  const auto of = [](const LoggedBatches& batches) {
    return ReadByTensorFlow(batches.batches.at(0).frames);
  };
  EXPECT_EQ(of(read()), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(of(read()), (std::vector<std::string>{"a", "b"}));
  queue->RemoveUpTo(read().end);
  EXPECT_EQ(of(read()), std::vector<std::string>{"c"});
  queue->RemoveUpTo(read().end);
  EXPECT_TRUE(read().batches.empty());
}

}  // namespace
}  // namespace millpond::tf
