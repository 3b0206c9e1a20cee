#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "native/servable/record_queue.h"

namespace millpond::tf {

// Appends `record` to `frames` as a TFRecord file has it: its length, its bytes, and a masked
// crc32c of each.
void AppendRecordFrame(std::string_view record, std::string* frames);

// The records of one RequestLog that were taken from the queue together.
struct LoggedBatch {
  uint64_t log_id = 0;
  int64_t record_count = 0;
  std::string frames;  // the PredictionLogs, as AppendRecordFrame writes them
  std::string heads;   // a servable::LoggedRequest for each
};

// Takes the complete records of RequestLogs from `queue`, in the order of the logs' ids. One thread
// at a time.
std::vector<LoggedBatch> TakeLoggedBatches(servable::RecordQueue* queue);

}  // namespace millpond::tf
