#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace millpond::servable {

struct PreparedRun;  // prepared_run.h

// A hash of the model's and the signature's names, which the envelope of a request shows. Requests
// with equal keys may share a batch. That is a guess, which decides only what a thread answers
// next.
using BatchKey = uint64_t;

// The key of requests that join no batch.
inline constexpr BatchKey kNoBatchKey = 0;
// Asks a queue for a request of any key, also for one that joins no batch. Equal to kNoBatchKey,
// because no batch asks for the requests of that key alone.
inline constexpr BatchKey kAnyBatchKey = kNoBatchKey;

// Returns the key of requests for a signature; "" means the default signature. Never kNoBatchKey.
BatchKey BatchKeyOf(std::string_view model_name, std::string_view signature_name);

// The same for requests that run several signatures at once.
BatchKey BatchKeyOfSeveral(std::string_view model_name);

// A request of any protocol that waits for a thread. It is answered in steps, so that requests can
// share the step in the middle: Prepare decodes it, a run computes what Prepare returned, Finish
// encodes and answers, Offer keeps a copy.
//
// Thread: the same for all steps.
class WaitingRequest {
 public:
  WaitingRequest() = default;
  virtual ~WaitingRequest() = default;
  WaitingRequest(const WaitingRequest&) = delete;
  WaitingRequest& operator=(const WaitingRequest&) = delete;

  // Returns what the request runs, which lives as long as the request. Returns null if there is
  // nothing to run, because the request has its answer already, or waits for something else.
  virtual PreparedRun* Prepare() = 0;
  // Answers, after the run. The answer may stay on this machine until Send.
  virtual void Finish() = 0;
  // Sends the answer that Finish left. The answers of a batch are sent one right after the other,
  // because a client wakes up only once for all that come together.
  virtual void Send() {}
  // Offers the request to what keeps some requests, after the answers of all requests of the batch
  // are sent, so that the copies delay none of them.
  virtual void Offer() {}
};

// A queue of requests that wait for a thread.
class WaitingRequests {
 public:
  virtual ~WaitingRequests() = default;
  // True if another thread is free to answer waiting requests. A guess, which may be stale.
  virtual bool HasFreeThread() const = 0;
  // The requests that wait for each thread, on average. A guess too.
  virtual int64_t WaitingPerThread() const = 0;
  // Takes the oldest waiting request of `key`; with kAnyBatchKey the oldest one that is not
  // compressed. Returns null if none waits, or if its message is longer than `bytes_max`.
  virtual std::unique_ptr<WaitingRequest> Take(BatchKey key, size_t bytes_max) = 0;
  // The batch that took requests runs now: what waits is for other threads.
  virtual void EndTaking() {}
};

// The oldest requests of a queue among which FindWaiting looks, because it holds the queue's lock.
inline constexpr size_t kLookedAtMax = 64;

// Returns the place in `queue`, the oldest request first, of the oldest request of `key`. With
// kAnyBatchKey it is the oldest one that is not compressed, because a short compressed message may
// be long to decode. Returns the end if none is among the oldest kLookedAtMax, or if its message is
// longer than `bytes_max`. `View` reads an item of the queue, by its static functions Key,
// IsCompressed and MessageBytes.
template <typename View, typename Queue>
typename Queue::iterator FindWaiting(Queue* queue, BatchKey key, size_t bytes_max) {
  const size_t looked_at_count = std::min(queue->size(), kLookedAtMax);
  const auto end = queue->begin() + static_cast<std::ptrdiff_t>(looked_at_count);
  const auto found = std::find_if(queue->begin(), end, [&](const auto& item) {
    return key == kAnyBatchKey ? !View::IsCompressed(item) : View::Key(item) == key;
  });
  return found == end || View::MessageBytes(*found) > bytes_max ? queue->end() : found;
}

}  // namespace millpond::servable
