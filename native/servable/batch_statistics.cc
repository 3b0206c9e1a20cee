#include "native/servable/batch_statistics.h"

#include <algorithm>

namespace millpond::servable {
namespace {

size_t ClassOf(int64_t count, size_t class_count) {
  size_t index = 0;
  while (index + 1 < class_count && (int64_t{1} << index) < count) ++index;
  return index;
}

void Add(std::atomic<int64_t>* counter, int64_t count) {
  counter->fetch_add(count, std::memory_order_relaxed);
}

int64_t Load(const std::atomic<int64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

}  // namespace

void BatchStatistics::RecordRun(int64_t requests, int64_t rows, int64_t padding_rows,
                                int64_t wait_ns, int64_t run_ns) {
  Add(&run_count_, 1);
  Add(&request_count_, requests);
  Add(&row_count_, rows);
  if (padding_rows > 0) Add(&padding_row_count_, padding_rows);
  Add(&wait_ns_, wait_ns);
  Add(&run_ns_, run_ns);
  Add(&by_rows_[ClassOf(rows, by_rows_.size())], 1);
  Add(&by_requests_[ClassOf(requests, by_requests_.size())], 1);
}

BatchFigures BatchStatistics::Figures() const {
  BatchFigures figures;
  figures.run_count = Load(run_count_);
  figures.request_count = Load(request_count_);
  figures.row_count = Load(row_count_);
  figures.padding_row_count = Load(padding_row_count_);
  figures.failed_batch_count = Load(failed_batch_count_);
  figures.split_request_count = Load(split_request_count_);
  figures.wait_ns = Load(wait_ns_);
  figures.run_ns = Load(run_ns_);
  std::transform(by_rows_.begin(), by_rows_.end(), figures.by_rows.begin(), Load);
  std::transform(by_requests_.begin(), by_requests_.end(), figures.by_requests.begin(), Load);
  return figures;
}

}  // namespace millpond::servable
