#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "native/base/status.h"
#include "native/servable/batch_check.h"
#include "native/servable/batch_queue.h"
#include "native/servable/batch_runner.h"
#include "native/servable/batch_size.h"
#include "native/servable/batched_signature.h"
#include "native/servable/piecewise_run.h"
#include "native/servable/prepared_run.h"

namespace millpond::servable {

// Prepared runs that do the same, computed as one run. First it forms (TakeRoom, TryAdd), then it
// runs, once. Alone, the first one runs in the same way on its own inputs.
//
// - A request that is cancelled, or whose deadline has passed, before the batch runs is left out.
// - A large request runs by itself, in pieces (PiecewiseRun).
// - A batch of several requests ends before it changes a variable. The requests then run one by
//   one, and the signature is turned off.
// - If a batch fails, its requests run one by one, and each gets its own result. But if it ends by
//   its deadline, all requests do, because it has the last deadline of all.
// - If an output does not have the batch's rows, the requests run one by one, and the signature is
//   turned off. The same holds if an answer differs from that of a single run (BatchCheck).
// - A request whose inputs do not have the shapes that the signature names runs alone, because the
//   graph was analyzed for these shapes only.
//
// Thread: one. Cost: a request alone is not copied. Each request of a batch is copied once, into
// its rows; its outputs are not copied.
class Batch {
 public:
  using GiveTurn = PiecewiseRun::GiveTurn;

  // Begins a batch with `first`, which `signature` batches. `inner` computes. Borrows all.
  Batch(const Servable& inner, const BatchSettings& settings, BatchedSignature* signature,
        PreparedRun* first);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  BatchKey key() const { return runner_.signature().key; }
  // Decides how large the next request may be, counts it as taken from `waiting`, and returns the
  // most bytes that its message may have. Returns nullopt if the batch had better run now.
  std::optional<size_t> TakeRoom(const WaitingRequests& waiting);
  // Adds the run of that request if it does the same and its rows fit the room that was decided.
  bool TryAdd(PreparedRun* run);
  // Runs all, and sets the status and the results of each. `give_turn` may be empty.
  void Run(const GiveTurn& give_turn);

 private:
  PreparedRun& first() const { return *members_.runs.front().run; }
  // The most rows of a run, padding included.
  int64_t RunRowsMax() const;
  int64_t LastDeadlineNs() const;

  // Leaves out the requests whose answers no client waits for, and sets their status. Returns
  // false if none is left.
  bool LeaveOutUnwanted(int64_t now_ns);
  void RunJoinedOrEach(int64_t begin_ns);
  // True if a joined run that ended so leaves no request the time for a run by itself.
  bool IsTooLateForAll(const base::Status& joined) const;
  base::Status RunJoined();
  void Divide(const RunResults& results) const;
  void EnterAll(metrics::Phase phase, int64_t now_ns) const;
  // Counts the run of all members together.
  void RecordRun(int64_t begin_ns, int64_t end_ns) const;
  // Runs each member by itself, and sets its status and results.
  void RunEach() const;

  const BatchRunner runner_;
  BatchMembers members_;
  FormedBatch formed_;
  BatchRoom room_;          // for the request that was taken last
  bool has_rows_ = false;   // false: its only request runs alone
  int64_t piece_rows_ = 0;  // 0: no piece is needed
  size_t row_bytes_ = 0;    // of the message of a request, at most, for each row
};

}  // namespace millpond::servable
