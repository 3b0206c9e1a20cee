#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "native/base/status.h"

namespace millpond::servable {

class OpenBatch;  // batching_servable.cc

// Which requests may share a batch, as far as their envelope shows it: a hash of the model's name
// and the signature's. Equal keys are a guess, which decides only what a thread answers next.
using BatchKey = uint64_t;

// The key of requests that join no batch.
inline constexpr BatchKey kNoBatchKey = 0;

// Returns the key of requests for a signature; "" means the default signature. Never kNoBatchKey.
BatchKey BatchKeyOf(std::string_view model_name, std::string_view signature_name);

// The same for requests that run several signatures at once.
BatchKey BatchKeyOfSeveral(std::string_view model_name);

// A queue of requests that wait for a thread.
class WaitingRequests {
 public:
  virtual ~WaitingRequests() = default;
  // True if another thread is free to answer what waits. A guess: it may be stale.
  virtual bool HasFreeThread() const = 0;
  // The requests that wait for each thread, on average. A guess too.
  virtual int64_t WaitingPerThread() const = 0;
  // Answers the oldest waiting request of `key`, from start to end, on the calling thread. Returns
  // false if none waits, or if its message is longer than `bytes_max`.
  virtual bool AnswerWaiting(BatchKey key, size_t bytes_max) = 0;
  // The same for the oldest request of any key.
  virtual bool AnswerAny(size_t bytes_max) = 0;
};

// The oldest requests of a queue among which FindWaiting looks, because it holds the queue's lock.
inline constexpr size_t kLookedAtMax = 64;

// Returns the place in `queue`, the oldest request first, of the oldest request of `key`, or of any
// that is not compressed if `key` is kNoBatchKey. Returns the end if none is among the oldest
// kLookedAtMax, or if its message is longer than `bytes_max`. `View` reads an item of the queue, by
// its static functions Key, IsCompressed and MessageBytes.
template <typename View, typename Queue>
typename Queue::iterator FindWaiting(Queue* queue, BatchKey key, size_t bytes_max) {
  const size_t looked_at_count = std::min(queue->size(), kLookedAtMax);
  const auto end = queue->begin() + static_cast<std::ptrdiff_t>(looked_at_count);
  const auto found = std::find_if(queue->begin(), end, [&](const auto& item) {
    return key == kNoBatchKey ? !View::IsCompressed(item) : View::Key(item) == key;
  });
  return found == end || View::MessageBytes(*found) > bytes_max ? queue->end() : found;
}

// While the scope lives, requests that run on this thread may form batches with requests that wait
// in `waiting`.
//
// Theory of operation. A run of a batched signature does not wait for others: it fetches them. If
// requests with its key wait, the thread answers the oldest of them there and then, within the run
// of the first one: it decodes the second request, which comes to its own run, joins the batch and
// fetches the third one in the same way. The last one, which finds no further request, runs the
// batch for all. Then each run returns to its request with its own rows, and the requests are
// encoded, recorded and sent from the last one to the first. So a batch is a recursion of ordinary
// requests: no thread waits, no request is suspended, and no protocol knows of batches. A request
// that finds no company runs at once, as without batching.
//
// A request that is fetched and turns out not to fit the batch (other outputs, another shape) makes
// the batch run first, and then begins the next batch. The replies of the first one wait for it. So
// a further request that does not fit either runs alone, and a request whose message is too long
// for the batch is not fetched.
//
// While a thread runs a batch, further requests are read by others and queue. The thread that is
// free next takes them all as one batch. So batches grow with the load by themselves. As long as
// another thread is free, a batch stays short (BatchCost::joined_rows_max): two threads with half
// the rows each are done earlier than one with all. And a batch that takes long is joined only if
// many requests wait behind it, so that they gain more than its own requests lose
// (BatchCost::IsWorthTheWait): two requests of 0.7 ms with a fixed cost of 0.1 ms, one after the
// other, are answered after 1.05 ms on average, and together after 1.3 ms.
//
// Thread: one scope for each thread that answers requests; on its stack.
class BatchScope {
 public:
  // The most requests that a batch's first one takes along, because each takes some KB of the
  // thread's stack. Requests that fail before their run are counted too: the batch waits for them.
  static constexpr size_t kDepthMax = 64;
  // The batches within one another that fetch requests.
  static constexpr size_t kFetchingMax = 2;

  // Borrows `waiting`.
  explicit BatchScope(WaitingRequests* waiting);
  ~BatchScope();
  BatchScope(const BatchScope&) = delete;
  BatchScope& operator=(const BatchScope&) = delete;

  // Returns the scope of this thread; null if it has none.
  static BatchScope* Current();

 private:
  friend class BatchingServable;

  WaitingRequests* const waiting_;
  BatchScope* const outer_;
  size_t depth_ = 0;              // runs that fetch requests now
  size_t begun_count_ = 0;        // batches within one another
  bool is_giving_turns_ = false;  // between two pieces of a large request
  OpenBatch* batch_ = nullptr;    // that requests join now
};

// The number of signatures that are batched, of all versions. If it is 0, no key need be made.
std::atomic<int64_t>& BatchingCount();

// Limits how many requests of a key may wait, in all queues of the process: a key is not more
// than a guess, and queues know no versions. While the object lives, `waiting_max` holds for `key`;
// of several limits of one key, as in a swap, the last one holds.
class WaitingLimit {
 public:
  // No limit if `waiting_max` is 0.
  WaitingLimit(BatchKey key, int64_t waiting_max);
  ~WaitingLimit();
  WaitingLimit(const WaitingLimit&) = delete;
  WaitingLimit& operator=(const WaitingLimit&) = delete;

  // Returns true if `key` has a limit that `waiting_count`, the length of a queue, may have
  // reached. `count_of_key` counts the queue's requests of the key, and is called only if needed.
  template <typename CountOfKey>
  static bool IsReached(BatchKey key, size_t waiting_count, const CountOfKey& count_of_key) {
    const auto count = static_cast<int64_t>(waiting_count);
    if (key == kNoBatchKey || count < smallest()) return false;
    const int64_t limit = Of(key);
    return count >= limit && count_of_key() >= limit;
  }
  // Returns the status of a request that is refused because the limit is reached.
  static base::Status Refusal();

 private:
  // The limit of a key; INT64_MAX if it has none.
  static int64_t Of(BatchKey key);
  // The smallest limit of all keys. Wait-free, for the usual case that no queue is that long.
  static int64_t smallest();

  const BatchKey key_;
  const int64_t waiting_max_;
};

}  // namespace millpond::servable
