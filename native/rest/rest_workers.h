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
#include "native/rest/content_coding.h"
#include "native/rest/rest_answer.h"
#include "native/rest/rest_request.h"
#include "native/servable/admission.h"
#include "native/servable/serving_map.h"

namespace millpond::rest {

// How a request ended, for the event loop to send.
struct EndedRequest {
  uint64_t id = 0;
  base::Status status;
  RestReply reply;  // where the status is OK; its body in `coding`
  ContentCoding coding = ContentCoding::kIdentity;
  std::optional<servable::ServableId> reached;  // the version that answered, or refused
};

struct RestWorkersOptions {
  int thread_count = 2;
  // Of the threads, so that requests over gRPC get a core that both want. 0: as their maker's.
  int nice = 0;
  // That wait for a worker, beyond those that run.
  size_t waiting_count_max = 1024;
  // How long a request waits for the first version of its model.
  int64_t first_version_wait_ns = 0;
  // Of one body once it is inflated.
  size_t body_bytes_max = size_t{64} << 20U;
  // Of one reply.
  size_t reply_bytes_max = base::kMaxReplyBytes;
  // Where the bytes under way are counted, together with gRPC's; null: they are not.
  std::shared_ptr<base::ByteBudget> budget;
  // Tells of the requests that reach no version; where it is null the workers make one.
  std::shared_ptr<metrics::RequestStatistics> statistics;
  // Takes the requests whose trace is sampled; null: nothing is traced.
  std::shared_ptr<metrics::SpanBuffer> spans;
  // Who may come in, together with gRPC's requests; null: everybody.
  std::shared_ptr<servable::Admission> admission;
  RestAnswerer answer = AnswerRest;
};

// Threads `rest-N` that answer requests which came over HTTP, so that the event loop's thread only
// parses heads and writes answers: it never waits for a model, nor a worker for Python.
//
// Thread: Submit, Cancel and TakeEnded from any; Start and Shutdown are the owner's. One mutex
// guards what waits and what has ended; it is held for nanoseconds, but by a thread that has a nice
// value, and so only requests over HTTP wait for it. gRPC's threads never take it.
// Lifetime: the serving map outlives it. Every request that Submit takes is told of once by
// TakeEnded, whatever became of it, unless Shutdown gave up on it.
class RestWorkers {
 public:
  RestWorkers(servable::ServingMap* map, RestWorkersOptions options);
  ~RestWorkers();
  RestWorkers(const RestWorkers&) = delete;
  RestWorkers& operator=(const RestWorkers&) = delete;

  // Starts the threads. Once. RESOURCE_EXHAUSTED without descriptors.
  base::Status Start();

  // Readable while TakeEnded has something to tell; an eventfd. After Start.
  int ended_descriptor() const;

  // Takes a request, whose body the caller keeps until it has ended. RESOURCE_EXHAUSTED at once
  // where as many as may be are in flight or wait, UNAVAILABLE after Shutdown.
  base::StatusOr<uint64_t> Submit(RestRequest request);

  // Its client is gone: the run ends before its next kernel. Nothing where it has ended.
  void Cancel(uint64_t id);

  // Those that have ended since the last call. Waits for nothing.
  std::vector<EndedRequest> TakeEnded();

  // Answers the requests that wait for the first version of their model. None waits from now on.
  void EndAwaiting();

  // Takes nothing more, waits for what was taken, cancels after `drain_ns` what is left and ends
  // the threads. True where nothing was cut short. A second call returns the same.
  //
  // A kernel is not interrupted. Where one still runs kCutShortNs after the cancellation, its
  // thread goes on, and serving map and bodies must outlive it: end the process.
  bool Shutdown(int64_t drain_ns);

 private:
  static constexpr int64_t kCutShortNs = 2'000'000'000;

  struct State;
  std::shared_ptr<State> state_;  // a worker that is stuck has it too
};

}  // namespace millpond::rest
