#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace millpond::pjrt {

// The order in which models take turns on an accelerator: start-time fair queueing
// (https://doi.org/10.1109/90.649569) over models, by the time that their runs take there.
//
// Each model has a tag, the accelerator's time that it has had; the least tag is next. A run that
// begins adds its cost, and its end puts that right, up to a bound. A model that had no run starts
// at the tag that is served now, so no model saves up, and the share of an idle model is
// everyone's. A model of low priority takes turns only while no other model has a run.
//
// Runs begin before others have ended, so that a run's transfers are under another's computation:
// as many as take kUnderWayNs together, and two of any cost. While models share the accelerator,
// each run under way is one that another model may have to wait for. Then two are under way only if
// they are short, or if one is short and of another model.
//
// Promise: while a model has runs here, no other model of its priority or below begins runs of more
// time than its own do, but for one run of each, and for what runs take more than their cost. So if
// a model below its share has a run, then it begins as soon as the runs under way permit.
//
// Pure, on values; belongs to one thread, or to a lock.
class DeviceSchedule {
 public:
  // While models share the accelerator, a run should take no longer (PieceChoice).
  static constexpr int64_t kPieceNs = 300'000;
  // The most that two runs under way may take while models share the accelerator: two of programs
  // that can be no shorter than kPieceNs.
  static constexpr int64_t kSharedUnderWayNs = 1'000'000;
  // Two launches of a small program and its transfers; more runs at once gain nothing.
  static constexpr int64_t kUnderWayNs = 2'000'000;
  // The bound of a cost and of a debt. A longer run is rare, and must not block its model for long.
  static constexpr int64_t kCostNsMax = 1'000'000'000;

  // A run whose time is known is charged at most so many times that. More than that is the lateness
  // of the thread that saw its end, or of another run's, and no time of its model's.
  static constexpr int64_t kLateFactor = 4;

  // True if only two such runs are under way at once. Then the copy of a run's outputs must not be
  // part of its turn, or the upload of the run after the next one would wait for it.
  static constexpr bool IsLong(int64_t cost_ns) { return cost_ns >= kUnderWayNs / 2; }

  // Adds a run with this unique `id` to the queue of `model`. It is expected to take `cost_ns`; 0:
  // not known.
  void Add(const std::string& model, bool is_low, int64_t id, int64_t cost_ns);
  // Takes a run out of its queue. Returns false if it is under way.
  bool Remove(const std::string& model, int64_t id);
  // Returns the run that begins now, which is under way then. Nothing if none waits, or if enough
  // are under way; fewer are if models share the accelerator.
  std::optional<int64_t> Begin(bool is_shared);
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
    int64_t tag_ns = 0;
    int64_t under_way_count = 0;
  };
  struct UnderWay {
    std::string model;
    int64_t cost_ns = 0;
  };
  using Queues = std::map<std::string, Queue, std::less<>>;

  Queues::iterator Next();
  bool MayBegin(const std::string& model, int64_t cost_ns, bool is_shared) const;
  void DropIdle();

  Queues queues_;                          // of models with runs, or with more time than others
  std::array<int64_t, 2> served_ns_ = {};  // the tag of the last run that began, by priority
  std::map<int64_t, UnderWay> under_way_;
  int64_t under_way_ns_ = 0;
  int64_t last_end_ns_ = 0;
};

}  // namespace millpond::pjrt
