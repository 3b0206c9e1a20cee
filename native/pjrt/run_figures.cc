#include "native/pjrt/run_figures.h"

namespace millpond::pjrt {

void RunCounts::AddSize(int64_t rows) {
  std::unique_ptr<SizeCounts>& counts = by_size_[rows];
  if (counts == nullptr) counts = std::make_unique<SizeCounts>();
}

void RunCounts::CountRun(int64_t size, int64_t rows) {
  SizeCounts& counts = *by_size_.at(size);
  counts.runs.fetch_add(1, std::memory_order_relaxed);
  counts.rows.fetch_add(rows, std::memory_order_relaxed);
}

bool RunCounts::BeginRun() {
  const int64_t index = begun_runs_.fetch_add(1, std::memory_order_relaxed);
  return index < kTimedFirst || index % kTimedOneOf == 0;
}

void RunCounts::AddTimes(const std::array<int64_t, kRunStageCount>& stage_ns) {
  timed_runs_.fetch_add(1, std::memory_order_relaxed);
  for (size_t stage = 0; stage < kRunStageCount; ++stage) {
    stage_ns_[stage].fetch_add(stage_ns[stage], std::memory_order_relaxed);
  }
}

RunFigures RunCounts::Figures(const std::string& signature) const {
  RunFigures figures;
  figures.signature = signature;
  for (const auto& [rows, counts] : by_size_) {
    figures.sizes.push_back(rows);
    figures.run_counts.push_back(counts->runs.load(std::memory_order_relaxed));
    figures.row_counts.push_back(counts->rows.load(std::memory_order_relaxed));
  }
  figures.timed_run_count = timed_runs_.load(std::memory_order_relaxed);
  for (size_t stage = 0; stage < kRunStageCount; ++stage) {
    figures.stage_ns[stage] = stage_ns_[stage].load(std::memory_order_relaxed);
  }
  for (size_t reason = 0; reason < kCpuReasonCount; ++reason) {
    figures.cpu_run_counts[reason] = cpu_runs_[reason].load(std::memory_order_relaxed);
  }
  return figures;
}

}  // namespace millpond::pjrt
