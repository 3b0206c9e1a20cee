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

}  // namespace

void AppendRecordFrame(std::string_view record, std::string* frames) {
  const uint64_t length = record.size();
  AppendValue(length, frames);
  AppendValue(MaskedCrc32c(reinterpret_cast<const char*>(&length), sizeof length), frames);
  frames->append(record);
  AppendValue(MaskedCrc32c(record.data(), record.size()), frames);
}

std::vector<LoggedBatch> TakeLoggedBatches(servable::RecordQueue* queue) {
  std::map<uint64_t, LoggedBatch> by_log;
  queue->TakeAll([&](std::string_view record) {
    constexpr size_t kHeadBytes = sizeof(servable::LoggedRequest);
    servable::LoggedRequest head;
    std::memcpy(&head, record.data(), kHeadBytes);
    LoggedBatch& batch = by_log[head.log_id];
    batch.log_id = head.log_id;
    batch.record_count += 1;
    batch.heads.append(record.substr(0, kHeadBytes));
    AppendRecordFrame(record.substr(kHeadBytes), &batch.frames);
  });
  std::vector<LoggedBatch> batches;
  for (auto& [id, batch] : by_log) batches.push_back(std::move(batch));
  return batches;
}

}  // namespace millpond::tf
