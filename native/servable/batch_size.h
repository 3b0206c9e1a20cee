#pragma once

#include <cstddef>
#include <cstdint>

#include "native/servable/batch_cost.h"

namespace millpond::servable {

// How large a batch becomes. Three limits on what a thread takes are elsewhere: the bytes of the
// next message (Batch::TakeRoom), the number of batches for which a thread takes requests before it
// does anything else (kTakingBatchesMax in answer_requests.cc), and the rows and the time of a run
// that the settings allow (BatchSettings).

// The most requests that are taken for a batch. Its first request waits until all are decoded.
// Requests that turn out to be bad are counted too, because a flood of them would delay it.
inline constexpr size_t kTakenRequestsMax = 64;

// One batch in so many is a trial: two requests may join whatever the costs seem to be, so that a
// wrong measurement of a larger run is corrected.
inline constexpr uint64_t kTrialEvery = 32;

// A batch as far as it has formed.
struct FormedBatch {
  int64_t request_count = 0;
  int64_t rows = 0;
  int64_t first_rows = 0;  // of its first request
  bool is_trial = false;   // kTrialEvery
  size_t taken_count = 0;  // requests, beside the first, that joined or turned out to be bad
};

// The state of the threads while a batch forms. Guesses: both may be stale.
struct BusyThreads {
  bool is_any_free = false;
  int64_t waiting_per_thread = 0;  // requests, on average
};

// The room of a batch for its next request.
struct BatchRoom {
  // A waiting request of up to as many rows had better join. 0: the batch had better run now.
  int64_t sought_rows = 0;
  // A request that was taken, and has more rows than its message let expect, joins with up to as
  // many: it is decoded, so another thread would answer it no earlier.
  int64_t rows_max = 0;
};

// Decides how large the next request of `batch` may be. `run_rows_max` is the most rows of a run.
//
// While another thread is free a batch stays short: two threads with half the rows each are done
// earlier than one with all. While all are busy it takes what waits, up to the rows from which on
// it only makes its requests wait. And a batch that takes long is joined only if many requests wait
// behind it, so that they gain more than its own requests lose: two requests of 0.7 ms with a fixed
// cost of 0.1 ms, one after the other, are answered after 1.05 ms on average, and together after
// 1.3 ms.
//
// Two requests of a size may always join while all threads are busy, so that a wrong measurement of
// a larger run is corrected.
BatchRoom RoomForNextRequest(const FormedBatch& batch, const BatchCost& cost, int64_t run_rows_max,
                             const BusyThreads& threads);

}  // namespace millpond::servable
