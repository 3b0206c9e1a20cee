#pragma once

#include <cstddef>
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

// The records up to `end` of a queue, in the order of their logs' ids.
struct LoggedBatches {
  std::vector<LoggedBatch> batches;
  uint64_t end = 0;  // for RecordQueue::RemoveUpTo
};

// Reads the complete records of RequestLogs at the front of `queue`: up to `bytes_max`, and the one
// that exceeds it. They stay in the queue, so a caller that runs out of memory loses none. One
// thread at a time. Cost: allocates each batch once, at its size.
LoggedBatches ReadLoggedBatches(const servable::RecordQueue& queue, size_t bytes_max);

}  // namespace millpond::tf
