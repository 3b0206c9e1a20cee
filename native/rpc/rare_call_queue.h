#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/base/trace_context.h"
#include "native/metrics/request_recorder.h"

namespace millpond::rpc {

class Call;

// A call of a method that is not served here: bytes in, bytes out, answered by whoever took it.
// Dropped unanswered it fails with INTERNAL. Recorded before it is answered: in the queue until it
// is taken, then in run. Not thread-safe.
class RareCall {
 public:
  // `request` is what `call` came with.
  RareCall(Call* call, std::string request, std::shared_ptr<metrics::MethodRecorder> requests);
  ~RareCall();
  RareCall(const RareCall&) = delete;
  RareCall& operator=(const RareCall&) = delete;

  const std::string& path() const { return path_; }
  const std::string& request() const { return request_; }
  // Of which trace it is a part.
  const std::optional<base::TraceContext>& trace_context() const { return trace_context_; }
  // Who calls: see Call.
  const std::string& peer() const { return peer_; }
  const std::vector<std::string>& client_names() const { return client_names_; }
  // Whether a proxy has sent the call on: then the peer is the proxy.
  bool is_forwarded() const { return is_forwarded_; }
  // How long the client still waits for its answer, from `now_ns` on base::MonotonicNs's clock: 0
  // where its deadline has passed, nothing where it set none.
  std::optional<int64_t> RemainingNs(int64_t now_ns) const;
  // Whether an answer can still reach the client: the call has neither been answered nor cancelled,
  // and its deadline has not passed.
  bool IsWanted() const;

  // Its wait in the queue is over.
  void MarkTaken(int64_t now_ns) { watch_.Enter(metrics::Phase::kRun, now_ns); }

  // FAILED_PRECONDITION where it was answered before.
  base::Status Reply(const std::string& response);
  base::Status Fail(const base::Status& status);

 private:
  base::StatusOr<std::shared_ptr<Call>> TakeCall();
  void Record(base::Code code);

  std::shared_ptr<Call> call_;  // null once answered
  const std::shared_ptr<metrics::MethodRecorder> requests_;
  metrics::PhaseWatch watch_;
  // Copied with the rest: the call is gone once it is answered.
  const int64_t deadline_ns_;  // tensor::RunContext::kNoDeadline where there is none
  const std::string path_;
  const std::string request_;
  const std::optional<base::TraceContext> trace_context_;
  const std::string peer_;
  const std::vector<std::string> client_names_;
  const bool is_forwarded_;
};

// Calls of rare methods on their way from the threads that serve to the control plane's, which
// takes them with Take: no thread that serves ever enters Python.
class RareCallQueue {
 public:
  // Above what a crowd of `millpond status` needs; below what would hide a control plane that
  // hangs.
  static constexpr size_t kMaxWaiting = 256;

  // RESOURCE_EXHAUSTED to the client where too many wait, UNAVAILABLE once closed.
  void Put(std::unique_ptr<RareCall> call);
  // The next call; null at the timeout, or once closed and empty.
  std::unique_ptr<RareCall> Take(int64_t timeout_ns);
  // Fails what waits with UNAVAILABLE and takes no more.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::deque<std::unique_ptr<RareCall>> waiting_;
};

}  // namespace millpond::rpc
