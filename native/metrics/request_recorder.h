#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "native/base/status.h"
#include "native/metrics/latency_histogram.h"
#include "native/metrics/request_phases.h"

namespace millpond::metrics {

// What a recorder had recorded at one moment, in short.
struct RequestSnapshot {
  LatencySnapshot latency;
  // By the number of the base::Code; adds up to latency.count().
  std::array<int64_t, base::kCodeCount> count_by_code{};
};

// All that a recorder had recorded at one moment. A value.
struct MethodSnapshot {
  const LatencySnapshot& phase(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
  int64_t count() const { return phase(Phase::kTotal).count(); }
  int64_t failed_count() const;
  MethodSnapshot& operator+=(const MethodSnapshot& other);

  // Only codes that occurred.
  std::map<base::Code, LatencySnapshot> by_code;
  // kTotal is the sum over by_code. While requests run, the other phases may be ahead of it.
  std::array<LatencySnapshot, kPhaseCount> phases;
};

// A histogram that may be made later, by the first thread that records.
//
// Thread: any, at once. Get is lock-free: of threads that come first together each makes one, one
// of them is kept, and the others free theirs.
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
  // Empty where there is none yet.
  LatencySnapshot Snapshot() const;
  bool is_made() const { return histogram_.load(std::memory_order_acquire) != nullptr; }

 private:
  LatencyHistogram& Make(LatencyHistogram::Use use);

  std::atomic<LatencyHistogram*> histogram_{nullptr};
};

// The requests to one method of one version that have ended, however they ended.
//
// Thread: any, at once. Wait-free as LatencyHistogram is, but for the first request of each code
// that is not OK (and, of a method that is rare, of each phase): that one makes a rare histogram,
// 14 KiB, in some 5 µs, lock-free.
// Counts: exact. The sum over codes is the total's count: there is no other.
// Cost: Record 13 ns with all phases, 60 in the shared shards
// (native/bench/latency_histogram_bench.cc). Memory where it is hot: 72 KiB a core, at most 32, and
// 72 KiB, touched when it is made.
class MethodRecorder {
 public:
  // Hot: all that a request which succeeds needs is there from the start. Rare: nothing is there
  // before the first request.
  using Use = LatencyHistogram::Use;

  explicit MethodRecorder(Use use);

  // Once for each request, before it is answered, failures and expired deadlines included. The
  // total must be there; of the other phases those that the request reached.
  void Record(base::Code code, const PhaseTimes& times);

  // False where nothing can have been recorded, which is told without a snapshot.
  bool MayHaveRequests() const;
  MethodSnapshot Snapshot() const;
  RequestSnapshot Summary() const;

 private:
  static constexpr size_t kTimedPhaseCount = kPhaseCount - 1;  // the total is by code

  const Use use_;
  std::array<LazyHistogram, base::kCodeCount> totals_by_code_;
  std::array<LazyHistogram, kTimedPhaseCount> phases_;
};

// The methods that a version answers itself: those of TensorFlow Serving's services, of the open
// inference protocol (ModelInfer), and their counterparts over HTTP.
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

// All of them, in order.
std::array<Method, kMethodCount> AllMethods();

// False for the methods that are answered without a run of the model.
constexpr bool RunsModel(Method method) { return method != Method::kGetModelMetadata; }

// As it is named in the service's definition; with "Rest" before it over HTTP.
const char* MethodName(Method method);

// The requests to one version that have ended.
//
// Owner: the version, and whoever tells of it later (RequestStatistics). Thread: as MethodRecorder.
class RequestRecorder {
 public:
  // `predict` kRare is for requests that reach no version: nothing is there before the first one.
  explicit RequestRecorder(MethodRecorder::Use predict = MethodRecorder::Use::kHot);

  MethodRecorder& Of(Method method) { return methods_[static_cast<size_t>(method)]; }
  const MethodRecorder& Of(Method method) const { return methods_[static_cast<size_t>(method)]; }

  // Sums up every method that runs the model, over every protocol: by these requests a version is
  // judged. It costs the recording thread nothing: the sum is made here, by the thread that asks.
  RequestSnapshot ModelRuns() const;

  // False if nothing can have been recorded for any method.
  bool MayHaveRequests() const;

  // Once the version is gone, and nothing is recorded any more. Only the first call counts.
  void MarkEnded(int64_t now_ns);
  std::optional<int64_t> ended_ns() const;

 private:
  using Use = MethodRecorder::Use;
  std::array<MethodRecorder, kMethodCount> methods_;
  std::atomic<int64_t> ended_ns_{0};  // 0: not yet
};

}  // namespace millpond::metrics
