#include "native/servable/batch_size.h"

#include <algorithm>

namespace millpond::servable {

BatchRoom RoomForNextRequest(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max,
                             const BusyThreads& threads) {
  if (batch.taken_count >= kTakenRequestsMax) return {};
  const bool is_worth = cost.IsWorthTheWait(
      batch.request_count + 1, batch.rows / batch.request_count, threads.waiting_per_thread);
  const bool is_second_of_trial = batch.is_trial && batch.request_count == 1;
  if (!is_worth && !is_second_of_trial) return {};
  const int64_t worth = cost.joined_rows_max(/*is_thread_free=*/false);
  const int64_t busy_max = std::min(std::max(worth, 2 * batch.first_rows), run_rows_max);
  const int64_t sought_max =
      threads.is_any_free ? cost.joined_rows_max(/*is_thread_free=*/true) : busy_max;
  return {std::max<int64_t>(sought_max - batch.rows, 0),
          std::max<int64_t>(busy_max - batch.rows, 0)};
}

}  // namespace millpond::servable
