#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace millpond::pjrt {

// The order in which models take turns on an accelerator: deficit round robin
// (https://doi.org/10.1109/90.502236) over models, by the time that their runs take there.
//
// Each round adds kQuantumNs to what a model may use, and a run begins once its model may use its
// cost. A model without runs loses what it may use. So the share of an idle model is everyone's,
// and no model saves up. A run that took longer than its cost leaves a debt, up to a bound. A model
// of low priority takes turns only while no other model has a run.
//
// Runs begin before others have ended, so that a run's transfers are under another's computation:
// as many as take kUnderWayNs together, and two of any cost.
//
// Promise: if a run waits alone in its model's queue, each other model of its priority or above
// begins runs of at most (kQuantumNs + its longest cost) for each kQuantumNs of the run's cost and
// of its model's debt, before it. Before these, only the runs under way end.
//
// Pure, on values; belongs to one thread, or to a lock.
class DeviceSchedule {
 public:
  // About a run of the models that GPUs serve, so that a round takes a few runs of each model.
  static constexpr int64_t kQuantumNs = 1'000'000;
  // Two launches of a small program and its transfers; more runs at once gain nothing.
  static constexpr int64_t kUnderWayNs = 2'000'000;
  // The bound of a cost and of a debt. A longer run is rare, and must not block its model for long.
  static constexpr int64_t kCostNsMax = 1'000'000'000;

  // True if only two such runs are under way at once. Then the copy of a run's outputs must not be
  // part of its turn, or the upload of the run after the next one would wait for it.
  static constexpr bool IsLong(int64_t cost_ns) { return cost_ns >= kUnderWayNs / 2; }

  // Adds a run with this unique `id` to the queue of `model`. It is expected to take `cost_ns`.
  void Add(const std::string& model, bool is_low, int64_t id, int64_t cost_ns);
  // Takes a run out of its queue. Returns false if it is under way.
  bool Remove(const std::string& model, int64_t id);
  // Returns the run that begins now, which is under way then. Nothing if none waits, or if enough
  // are under way.
  std::optional<int64_t> Begin();
  // Ends a run that is under way, and charges its model the time that it took in excess of its
  // cost. Returns that time: from its beginning or the end of the run before it, whichever was
  // later, to now.
  int64_t End(int64_t id, int64_t began_ns, int64_t now_ns);

  // The least time until a new run of `model` could begin: that of the runs before it in its queue.
  int64_t LeastWaitNs(const std::string& model) const;
  // The time until a run that begins to wait now could have ended, if all runs of its priority and
  // above that are there come first, and each takes its cost. At least 1 ns for each of them.
  int64_t ExpectedWaitNs(bool is_low) const;
  // When the last run ended; 0 before the first end.
  int64_t last_end_ns() const { return last_end_ns_; }

 private:
  struct Run {
    int64_t id = 0;
    int64_t cost_ns = 0;
  };
  struct Queue {
    std::deque<Run> runs;
    bool is_low = false;
    int64_t deficit_ns = 0;  // what the model may use; below 0, its debt
  };
  struct UnderWay {
    std::string model;
    int64_t cost_ns = 0;
  };
  using Queues = std::map<std::string, Queue, std::less<>>;

  bool HasRuns(bool is_low) const;
  Queues::iterator Turn();
  void NextTurn(Queues::iterator queue);

  Queues queues_;             // of models with runs, or with debts
  std::string turn_;          // the model whose turn it is
  bool has_quantum_ = false;  // it has got its quantum of this turn
  std::map<int64_t, UnderWay> under_way_;
  int64_t under_way_ns_ = 0;
  int64_t last_end_ns_ = 0;
};

}  // namespace millpond::pjrt
