#include "native/servable/batch_statistics.h"

#include <algorithm>

#include "native/base/bit_width.h"

namespace millpond::servable {
namespace {

constexpr int64_t kNsPerMicrosecond = 1'000;

// Returns the class of a count: the first i with `count` <= 2^i, and at most the last class.
size_t ClassUpTo(int64_t count, size_t class_count) {
  const int index = base::BitWidth(std::max<int64_t>(count, 1) - 1);
  return std::min(static_cast<size_t>(index), class_count - 1);
}

// Returns the class of a time, rounded up to whole µs.
size_t TimeClassUpTo(int64_t ns, size_t class_count) {
  return ClassUpTo((ns + kNsPerMicrosecond - 1) / kNsPerMicrosecond, class_count);
}

void Add(std::atomic<int64_t>* counter, int64_t count) {
  if (count != 0) counter->fetch_add(count, std::memory_order_relaxed);
}

template <typename Counters, typename Counts>
void AddAll(Counters* counters, const Counts& counts) {
  for (size_t i = 0; i < counts.size(); ++i) Add(&(*counters)[i], counts[i]);
}

int64_t Load(const std::atomic<int64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

template <typename Counters, typename Counts>
void LoadAll(const Counters& counters, Counts* counts) {
  std::transform(counters.begin(), counters.end(), counts->begin(), Load);
}

}  // namespace

void BatchRun::Add(int64_t wait_ns) {
  request_count_ += 1;
  wait_ns_ += wait_ns;
  by_wait_[TimeClassUpTo(wait_ns, by_wait_.size())] += 1;
}

void BatchStatistics::RecordRun(const BatchRun& run, int64_t rows, int64_t padding_rows,
                                int64_t run_ns) {
  Add(&run_count_, 1);
  Add(&request_count_, run.request_count_);
  Add(&row_count_, rows);
  Add(&padding_row_count_, padding_rows);
  Add(&wait_ns_, run.wait_ns_);
  Add(&run_ns_, run_ns);
  Add(&by_rows_[ClassUpTo(rows, by_rows_.size())], 1);
  Add(&by_requests_[ClassUpTo(run.request_count_, by_requests_.size())], 1);
  Add(&by_run_[TimeClassUpTo(run_ns, by_run_.size())], 1);
  AddAll(&by_wait_, run.by_wait_);
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
  LoadAll(by_rows_, &figures.by_rows);
  LoadAll(by_requests_, &figures.by_requests);
  LoadAll(by_wait_, &figures.by_wait);
  LoadAll(by_run_, &figures.by_run);
  return figures;
}

}  // namespace millpond::servable
