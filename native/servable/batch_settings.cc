#include "native/servable/batch_settings.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "native/tensor/run_context.h"

namespace millpond::servable {

BatchSettings ForCompiledModel(BatchSettings settings) {
  settings.is_compiled = true;
  if (!settings.allowed_rows.empty()) return settings;
  for (int64_t rows = 1; rows < settings.rows_max; rows *= 2) settings.allowed_rows.push_back(rows);
  settings.allowed_rows.push_back(settings.rows_max);
  return settings;
}

bool BatchSlots::Take(int64_t until_ns) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_free = [this] { return free_count_ > 0; };
  if (until_ns == tensor::RunContext::kNoDeadline) {
    freed_.wait(lock, is_free);
  } else {
    // The clock of base::MonotonicNs.
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(until_ns)};
    if (!freed_.wait_until(lock, until, is_free)) return false;
  }
  free_count_ -= 1;
  return true;
}

void BatchSlots::Give() {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_count_ += 1;
  freed_.notify_one();
}

int64_t BatchSettings::PaddedRows(int64_t rows) const {
  const auto next = std::lower_bound(allowed_rows.begin(), allowed_rows.end(), rows);
  return next == allowed_rows.end() ? rows : *next;
}

bool BatchSettings::HasRunSize(int64_t rows) const {
  return !is_compiled || allowed_rows.empty() || rows <= allowed_rows.back();
}

int64_t BatchSettings::AllowedRows(int64_t rows) const {
  if (allowed_rows.empty()) return rows;
  const auto above = std::upper_bound(allowed_rows.begin(), allowed_rows.end(), rows);
  return above == allowed_rows.begin() ? allowed_rows.front() : *std::prev(above);
}

}  // namespace millpond::servable
