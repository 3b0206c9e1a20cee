#pragma once

#include <cstdint>

#include "native/servable/batch_cost.h"

namespace millpond::servable {

// A batch as far as it has formed.
struct FormedBatch {
  int64_t request_count = 0;
  int64_t rows = 0;
  int64_t first_rows = 0;  // of its first request
  bool is_trial = false;   // two requests may join whatever the costs seem to be
};

// The state of the threads while a batch forms. Guesses: both may be stale.
struct BusyThreads {
  bool is_any_free = false;
  int64_t waiting_per_thread = 0;  // requests, on average
};

// Decides how large a batch becomes, in one place. Returns how many rows the next request that
// joins `batch` may have; 0: the batch had better run now. `run_rows_max` is the most rows of a
// run.
//
// While another thread is free a batch stays short: two threads with half the rows each are done
// earlier than one with all. While all are busy it takes what waits, up to the rows from which on
// it only makes its requests wait. And a batch that takes long is joined only if many requests wait
// behind it, so that they gain more than its own requests lose: two requests of 0.7 ms with a fixed
// cost of 0.1 ms, one after the other, are answered after 1.05 ms on average, and together after
// 1.3 ms.
int64_t HowManyToTake(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max,
                      const BusyThreads& threads);

// Returns the most rows that a batch may have while all threads are busy. Two requests may always
// join, so that a wrong measurement of a larger run is corrected.
int64_t RowsOfBatchMax(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max);

}  // namespace millpond::servable
