#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "native/base/sharded.h"
#include "native/base/status.h"
#include "native/metrics/latency_histogram.h"

namespace millpond::metrics {

// The phases of a request's time, in this order. The phases before kTotal are disjoint, and kTotal
// is their sum.
enum class Phase : size_t {
  // From the moment at which a request thread has read the whole message of the call, to the start
  // of its work. Includes the wait in the queue of rpc::RequestThreads if all threads are busy.
  // Only the client sees the time that a message waited in the socket while all threads were in
  // runs. For a method that the control plane answers the phase is the wait for one of its threads.
  // For a request over HTTP it is the wait for a worker.
  kQueue,
  kDecode,  // of the envelope and the tensors, with the look-up of the version
  // The time that the request gives to the others of its batch: before the run until its batch has
  // formed, after the run until the requests that joined later have their answers. Only requests
  // for a signature that is batched have this phase.
  kBatch,
  kRun,
  kEncode,
  kTotal,
};

inline constexpr size_t kPhaseCount = 6;

// The time that one request spent in each phase, in ns.
struct PhaseTimes {
  static constexpr int64_t kNone = -1;  // a phase that the request did not reach

  // Returns the times of a request of which only the total is known.
  static PhaseTimes OfTotal(int64_t total_ns) {
    PhaseTimes times;
    times[Phase::kTotal] = total_ns;
    return times;
  }
  int64_t operator[](Phase phase) const { return ns[static_cast<size_t>(phase)]; }
  int64_t& operator[](Phase phase) { return ns[static_cast<size_t>(phase)]; }

  std::array<int64_t, kPhaseCount> ns{kNone, kNone, kNone, kNone, kNone, kNone};
  // The rows of the request's own inputs; 1 for inputs without rows.
  int64_t row_count = 1;
};

// Divides a request's time into phases. The caller passes in the instants, one clock reading for
// each boundary. A phase may be entered several times: its time is the sum. Not thread-safe.
class PhaseWatch {
 public:
  // Starts in kQueue, at the instant when the request came.
  explicit PhaseWatch(int64_t received_ns) : received_ns_(received_ns), since_ns_(received_ns) {}

  // Ends the current phase and starts `phase`.
  void Enter(Phase phase, int64_t now_ns) {
    const int64_t spent_ns = now_ns - since_ns_;
    times_[current_] = std::max<int64_t>(times_[current_], 0) + spent_ns;
    current_ = phase;
    since_ns_ = now_ns;
  }
  void SetRowCount(int64_t count) { times_.row_count = count; }
  // Ends the last phase. May be called once.
  const PhaseTimes& End(int64_t now_ns) {
    Enter(Phase::kTotal, now_ns);
    times_[Phase::kTotal] = now_ns - received_ns_;
    return times_;
  }

 private:
  const int64_t received_ns_;
  int64_t since_ns_;
  Phase current_ = Phase::kQueue;
  PhaseTimes times_;
};

// A summary of a recorder's contents at one moment.
struct RequestSnapshot {
  int64_t request_count() const;
  int64_t failed_count() const { return request_count() - count_by_code[0]; }
  // The requests since `earlier`, a snapshot of the same recorder.
  RequestSnapshot Since(const RequestSnapshot& earlier) const;

  LatencySnapshot latency;
  // Indexed by the number of the base::Code. The sum is latency.count().
  std::array<int64_t, base::kCodeCount> count_by_code{};
};

// The full contents of a recorder at one moment. A value.
struct MethodSnapshot {
  const LatencySnapshot& phase(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  // The latencies of the requests that ended with `code`; empty if none did.
  LatencySnapshot latency(base::Code code) const;
  int64_t count() const { return phase(Phase::kTotal).count(); }
  int64_t failed_count() const;
  MethodSnapshot& operator+=(const MethodSnapshot& other);

  // Only the codes that occurred.
  std::map<base::Code, LatencySnapshot> by_code;
  int64_t row_count = 0;  // of the requests that ended with kOk
  // kTotal is the sum over by_code. While requests run, the other phases may be ahead of it.
  std::array<LatencySnapshot, kPhaseCount> phases;
};

// A histogram that the first thread that records makes.
//
// Thread: any thread at any time. Get is lock-free. If several threads come first at the same time,
// each makes a histogram. Only the first one is kept, and the other threads free theirs.
class LazyHistogram {
 public:
  LazyHistogram() = default;
  ~LazyHistogram() { delete histogram_.load(); }
  LazyHistogram(const LazyHistogram&) = delete;
  LazyHistogram& operator=(const LazyHistogram&) = delete;

  LatencyHistogram& Get(LatencyHistogram::Use use) {
    LatencyHistogram* const histogram = histogram_.load(std::memory_order_acquire);
    return histogram != nullptr ? *histogram : Make(use);
  }
  // Returns an empty snapshot if there is no histogram yet.
  LatencySnapshot Snapshot() const;
  bool is_made() const { return histogram_.load(std::memory_order_acquire) != nullptr; }

 private:
  LatencyHistogram& Make(LatencyHistogram::Use use);

  std::atomic<LatencyHistogram*> histogram_{nullptr};
};

// The ended requests to one method of one version, whatever their outcome.
//
// Thread: any thread at any time. Wait-free as LatencyHistogram is, with one exception: the first
// request of each phase and code makes a histogram (rare: 14 KiB, some 5 µs, lock-free). After
// Allocate only the first request of each code other than OK does so.
// Counts: exact. The total is the sum over the codes; it is not counted separately.
// Cost: Record 13 ns with all phases, 60 ns in the shared shards
// (native/bench/latency_histogram_bench.cc). Memory of a hot recorder with requests, or after
// Allocate: 72 KiB a core, for at most 32 cores, and 72 KiB. A fifth more with batches. A recorder
// without requests takes 200 bytes, because most of a thousand models have none.
class MethodRecorder {
 public:
  // The kind of the histograms. The histograms of a rare recorder share one shard each.
  using Use = LatencyHistogram::Use;

  explicit MethodRecorder(Use use);

  // Allocates what a successful request needs, in a hot recorder, and if `has_batches` what
  // requests that share runs need beside that. For the next version of a model that is in use:
  // without this call the first such request allocates it.
  void Allocate(bool has_batches);

  // Records a request, once, before it is answered. Failures and expired deadlines are recorded
  // too. `times` must have the total, and the phases that the request reached.
  void Record(base::Code code, const PhaseTimes& times);

  // Returns false if nothing can have been recorded. Takes no snapshot.
  bool MayHaveRequests() const;
  MethodSnapshot Snapshot() const;
  RequestSnapshot Summary() const;

 private:
  static constexpr size_t kTimedPhaseCount = kPhaseCount - 1;  // the total is recorded by code
  struct alignas(base::kCacheLineBytes) RowCell {
    std::atomic<int64_t> count{0};
  };

  int64_t RowCount() const;

  const Use use_;
  const std::unique_ptr<base::Sharded<RowCell>> hot_rows_;  // null in a rare recorder
  std::atomic<int64_t> rare_row_count_{0};
  std::array<LazyHistogram, base::kCodeCount> totals_by_code_;
  std::array<LazyHistogram, kTimedPhaseCount> phases_;
};

// The methods that a version answers itself: the methods of TensorFlow Serving's services and of
// the open inference protocol (ModelInfer), and their counterparts over HTTP.
enum class Method : size_t {
  kPredict,
  kGetModelMetadata,
  kClassify,
  kRegress,
  kMultiInference,
  kSessionRun,
  kModelInfer,
  kRestPredict,
  kRestClassify,
  kRestRegress,
  kRestModelInfer,
};

inline constexpr size_t kMethodCount = 11;

// The methods' names in the services' definitions; over HTTP with "Rest" before them.
inline constexpr std::array<const char*, kMethodCount> kMethodNames = {
    "Predict",    "GetModelMetadata", "Classify",     "Regress",     "MultiInference", "SessionRun",
    "ModelInfer", "RestPredict",      "RestClassify", "RestRegress", "RestModelInfer"};

// Returns all methods, in order.
std::array<Method, kMethodCount> AllMethods();

// Returns false for a method that is answered without a run of the model.
constexpr bool RunsModel(Method method) { return method != Method::kGetModelMetadata; }

constexpr const char* MethodName(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

// The ended requests to one version.
//
// Owner: the version, and RequestStatistics, which reports it longer. Thread: as MethodRecorder.
class RequestRecorder {
 public:
  // Constructs with `predict` kRare if few requests or no requests are expected, as for requests to
  // one model that reach no version. Nothing is allocated then before the first request.
  explicit RequestRecorder(MethodRecorder::Use predict = MethodRecorder::Use::kHot);

  MethodRecorder& Of(Method method) { return methods_[static_cast<size_t>(method)]; }
  const MethodRecorder& Of(Method method) const { return methods_[static_cast<size_t>(method)]; }

  // Returns the sum over every method that runs the model, over every protocol. A version is judged
  // by these requests. The caller's thread computes the sum, so recording threads pay nothing for
  // it.
  RequestSnapshot ModelRuns() const;

  // Returns false if nothing can have been recorded for any method.
  bool MayHaveRequests() const;

  // Marks the end of the version: nothing is recorded any more. Only the first call counts.
  void MarkEnded(int64_t now_ns);
  std::optional<int64_t> ended_ns() const;

 private:
  std::array<MethodRecorder, kMethodCount> methods_;
  std::atomic<int64_t> ended_ns_{0};  // 0: not ended
};

}  // namespace millpond::metrics
