#include "native/servable/batch_size.h"

#include <algorithm>

namespace millpond::servable {

int64_t RowsForNextRequest(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max,
                           const BusyThreads& threads) {
  if (batch.taken_count >= kTakenRequestsMax) return 0;
  const bool is_worth = cost.IsWorthTheWait(
      batch.request_count + 1, batch.rows / batch.request_count, threads.waiting_per_thread);
  const bool is_second_of_trial = batch.is_trial && batch.request_count == 1;
  if (!is_worth && !is_second_of_trial) return 0;
  const int64_t rows_max = threads.is_any_free ? cost.joined_rows_max(/*is_thread_free=*/true)
                                               : RowsOfBatchMax(batch, cost, run_rows_max);
  return std::max<int64_t>(rows_max - batch.rows, 0);
}

int64_t RowsOfBatchMax(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max) {
  const int64_t worth = cost.joined_rows_max(/*is_thread_free=*/false);
  return std::min(std::max(worth, 2 * batch.first_rows), run_rows_max);
}

}  // namespace millpond::servable
