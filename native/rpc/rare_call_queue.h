#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/base/trace_context.h"
#include "native/metrics/request_recorder.h"

namespace millpond::rpc {

class Call;

// A call of a method that the control plane answers: request bytes in, response bytes out. A call
// that is dropped unanswered fails with INTERNAL. It is recorded before it is answered. Its queue
// phase ends when it is taken, and its run phase begins. Not thread-safe.
class RareCall {
 public:
  // `request` is the message of `call`. `requests` is null if the call is not recorded.
  RareCall(Call* call, base::ChargedText request,
           std::shared_ptr<metrics::MethodRecorder> requests);
  ~RareCall();
  RareCall(const RareCall&) = delete;
  RareCall& operator=(const RareCall&) = delete;

  const std::string& path() const { return path_; }
  // The parts of a request over HTTP: see Call.
  const std::string& http_method() const { return http_method_; }
  const std::string& target() const { return target_; }
  const std::string& metadata() const { return metadata_; }
  // "" once the call is answered.
  const std::string& request() const { return request_.text; }
  // The trace that the call is a part of, if its client named one.
  const std::optional<base::TraceContext>& trace_context() const { return trace_context_; }
  // The client's end of the connection: see Call.
  const std::string& peer() const { return peer_; }
  const std::vector<std::string>& client_names() const { return client_names_; }
  // True if a proxy forwarded the call: then the peer is the proxy.
  bool is_forwarded() const { return is_forwarded_; }
  // The time for which the client still waits for its answer after `now_ns` (base::MonotonicNs). 0
  // if its deadline has passed; nullopt if it set none.
  std::optional<int64_t> RemainingNs(int64_t now_ns) const;
  // True if an answer can still reach the client. False once the call was answered or cancelled,
  // its deadline has passed, or a stop has cut calls short.
  bool IsWanted() const;

  // Ends the queue phase: a thread of the control plane has taken the call.
  void MarkTaken(int64_t now_ns) { watch_.Enter(metrics::Phase::kRun, now_ns); }

  // FAILED_PRECONDITION if the call was answered before.
  base::Status Reply(const std::string& response);
  // Over HTTP. `fields` are as in HttpAnswer.
  base::Status ReplyHttp(int status, std::string fields, std::string_view body);
  base::Status Fail(const base::Status& status);

 private:
  base::StatusOr<std::shared_ptr<Call>> TakeCall();
  void Record(base::Code code);
  void FreeRequest();

  std::shared_ptr<Call> call_;  // null once answered
  const std::shared_ptr<metrics::MethodRecorder> requests_;
  metrics::PhaseWatch watch_;
  // Copies, because the call is gone after its answer.
  const int64_t deadline_ns_;  // tensor::RunContext::kNoDeadline if the client set no deadline
  const std::string path_;
  const std::string http_method_;
  const std::string target_;
  const std::string metadata_;
  base::ChargedText request_;
  const std::optional<base::TraceContext> trace_context_;
  const std::string peer_;
  const std::vector<std::string> client_names_;
  const bool is_forwarded_;
};

// Calls of rare methods on their way from the request threads to the control plane. A thread of the
// control plane calls Take, so that no request thread ever enters Python.
//
// Thread: any, at once.
class RareCallQueue {
 public:
  // More than many clients with `millpond status` need, and few enough to reveal a control plane
  // that hangs.
  static constexpr size_t kMaxWaiting = 256;

  // Queues `call`. Fails it with RESOURCE_EXHAUSTED if kMaxWaiting calls wait, with UNAVAILABLE
  // after Close.
  void Put(std::unique_ptr<RareCall> call);
  // Returns the next call. Returns null at the timeout, or if the queue is closed and empty.
  std::unique_ptr<RareCall> Take(int64_t timeout_ns);
  // Fails the waiting calls with UNAVAILABLE, and all later ones.
  void Close();
  // True after Close: no call comes any more, and Take returns at once.
  bool is_closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::deque<std::unique_ptr<RareCall>> waiting_;
};

}  // namespace millpond::rpc
