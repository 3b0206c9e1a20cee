#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/metrics/request_statistics.h"
#include "native/metrics/span_buffer.h"
#include "native/rest/ended_requests.h"
#include "native/rest/rest_answer.h"
#include "native/rest/rest_request.h"
#include "native/servable/admission.h"
#include "native/servable/batch_queue.h"
#include "native/servable/serving_map.h"

namespace millpond::rest {

struct RestWorkersOptions {
  int thread_count = 2;
  // Workers beside these, which are left to other models than one that takes `thread_count`. 0: one
  // model may take all.
  int spare_count = 0;
  // The nice value of the threads, so that requests over gRPC get a core first. 0: the value of the
  // thread that starts them.
  int nice = 0;
  // The number of requests that may wait for a worker, in addition to the running requests.
  size_t waiting_count_max = 1024;
  // How long a request waits for the first version of its model.
  int64_t first_version_wait_ns = 0;
  // The limit of one body, inflated.
  size_t body_bytes_max = size_t{64} << 20U;
  // The limit of one reply.
  size_t reply_bytes_max = base::kMaxReplyBytes;
  // Counts the bytes in flight, together with those of gRPC. If it is null, they are not counted.
  std::shared_ptr<base::ByteBudget> budget;
  // Records the requests that reach no version. If it is null, the workers make their own.
  std::shared_ptr<metrics::RequestStatistics> statistics;
  // Takes the requests whose trace is sampled. If it is null, requests are not traced.
  std::shared_ptr<metrics::SpanBuffer> spans;
  // Limits the requests in flight, together with gRPC's requests. If it is null, all requests are
  // admitted.
  std::shared_ptr<servable::Admission> admission;
  RestPreparer prepare = PrepareRest;
};

// Threads `rest-N` that answer requests over HTTP. So the event loop's thread only parses heads and
// writes answers. It never waits for a model, and a worker never waits for Python.
//
// Requests that wait share runs if their signature is batched (servable::AnswerRequests).
//
// One model's requests never take the spare workers, however long they are: while a model has
// `thread_count` workers, its further requests wait, and those of other models pass them.
//
// Thread: Submit, Cancel and TakeEnded may be called by any thread; the owner calls Start and
// Shutdown. One mutex guards the waiting requests. It is held for nanoseconds, but its holder may
// be a thread of low priority that has lost its core. So gRPC's threads do not wait for it, except
// with a request whose version has just gone. Lifetime: the serving map outlives it. TakeEnded
// returns each request that Submit took exactly once, with any outcome, unless Shutdown gave up on
// it.
class RestWorkers {
 public:
  RestWorkers(servable::ServingMap* map, RestWorkersOptions options);
  ~RestWorkers();
  RestWorkers(const RestWorkers&) = delete;
  RestWorkers& operator=(const RestWorkers&) = delete;

  // Starts the threads. Call it once. Returns RESOURCE_EXHAUSTED if the process has no descriptor
  // left.
  base::Status Start();

  // An eventfd that is readable while TakeEnded has requests to return. Valid after Start.
  int ended_descriptor() const;

  // Takes a request, whose body the caller keeps until the request has ended. Returns
  // RESOURCE_EXHAUSTED at once if the limit of requests in flight or waiting is reached. Returns
  // UNAVAILABLE after Shutdown.
  base::StatusOr<uint64_t> Submit(RestRequest request);

  // Cancels a request whose client is gone. Its run ends before its next kernel. Does nothing if
  // the request has ended.
  void Cancel(uint64_t id);

  // Returns the requests that have ended since the last call, without waiting.
  std::vector<EndedRequest> TakeEnded();

  // The requests that wait for a worker, for the batches of other threads. A worker's nice value
  // may be above theirs, so workers take no request of theirs.
  std::shared_ptr<servable::WaitingRequests> waiting_requests() const;

  // Answers the requests that wait for the first version of their model. From now on, requests do
  // not wait for it.
  void EndAwaiting();

  // Refuses new requests, and waits up to `drain_ns` for the taken requests. Then it cancels the
  // requests that are left, and ends the threads. Returns true if no request was cut short. A
  // second call returns the same.
  //
  // A kernel is not interrupted. If one still runs kCutShortNs after the cancellation, its thread
  // goes on. The serving map and the bodies must then outlive it: end the process.
  bool Shutdown(int64_t drain_ns);

 private:
  static constexpr int64_t kCutShortNs = 2'000'000'000;

  struct State;
  std::shared_ptr<State> state_;  // shared with the workers, which may outlive this
};

}  // namespace millpond::rest
