#include "native/tf/record_frames.h"

#include <cstring>
#include <map>
#include <utility>

#include "native/servable/request_log.h"
#include "native/tf/crc32c.h"

namespace millpond::tf {
namespace {

// TFRecord files hold checksums in this form, because the crc of data that has a crc in it is weak.
uint32_t MaskedCrc32c(const char* bytes, size_t size) {
  constexpr uint32_t kMaskDelta = 0xa282ead8;
  const uint32_t crc32c = ExtendCrc32c(0, bytes, size);
  return (crc32c >> 15 | crc32c << 17) + kMaskDelta;
}

template <typename T>
void AppendValue(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr size_t kHeadBytes = sizeof(servable::LoggedRequest);
// The length and the two checksums of a frame.
constexpr size_t kFrameBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t);

uint64_t LogOf(std::string_view record) {
  servable::LoggedRequest head;
  std::memcpy(&head, record.data(), kHeadBytes);
  return head.log_id;
}

// Makes the batch of one log. It computes the size first, because a buffer that grows maps and
// unmaps memory, and the kernel's lock for that delays the page faults of all threads.
class BatchMaker {
 public:
  void Expect(std::string_view record) {
    batch_.record_count += 1;
    frames_bytes_ += record.size() - kHeadBytes + kFrameBytes;
  }
  void Reserve(uint64_t log_id) {
    batch_.log_id = log_id;
    batch_.heads.reserve(batch_.record_count * kHeadBytes);
    batch_.frames.reserve(frames_bytes_);
  }
  void Add(std::string_view record) {
    batch_.heads.append(record.substr(0, kHeadBytes));
    AppendRecordFrame(record.substr(kHeadBytes), &batch_.frames);
  }
  LoggedBatch Take() { return std::move(batch_); }

 private:
  LoggedBatch batch_;
  size_t frames_bytes_ = 0;
};

}  // namespace

void AppendRecordFrame(std::string_view record, std::string* frames) {
  const uint64_t length = record.size();
  AppendValue(length, frames);
  AppendValue(MaskedCrc32c(reinterpret_cast<const char*>(&length), sizeof length), frames);
  frames->append(record);
  AppendValue(MaskedCrc32c(record.data(), record.size()), frames);
}

LoggedBatches ReadLoggedBatches(const servable::RecordQueue& queue, size_t bytes_max) {
  LoggedBatches read;
  read.end = queue.FindEnd(bytes_max);
  std::map<uint64_t, BatchMaker> by_log;
  queue.VisitUpTo(read.end, [&](std::string_view record) { by_log[LogOf(record)].Expect(record); });
  for (auto& [id, maker] : by_log) maker.Reserve(id);
  queue.VisitUpTo(read.end, [&](std::string_view record) { by_log[LogOf(record)].Add(record); });
  for (auto& [id, maker] : by_log) read.batches.push_back(maker.Take());
  return read;
}

}  // namespace millpond::tf
