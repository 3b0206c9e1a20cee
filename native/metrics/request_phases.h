#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

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

}  // namespace millpond::metrics
