#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "native/metrics/latency_histogram.h"
#include "native/metrics/model_history.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/unmatched_requests.h"

namespace millpond::metrics {

// The subject of a series of figures.
struct MethodKey {
  std::string model;    // "": no model
  int64_t version = 0;  // 0: no version, or all; -1: requests that reached no version
  std::string method;

  bool operator<(const MethodKey& other) const {
    return std::tie(model, version, method) < std::tie(other.model, other.version, other.method);
  }
};

// The figures of the requests to one method, since the first and in the last spans. A value. A copy
// copies some snapshots of 14 KiB and shares the spans.
struct MethodFigures {
  // The longest window for which spans are kept.
  static constexpr int64_t kLongestWindowNs = 60'000'000'000;

  MethodFigures& operator+=(const MethodFigures& other);

  MethodSnapshot since_start;
  LatencySpans spans;  // by phase; only spans with requests
};

// The requests to one method of one version at one moment. A value.
struct MethodStatistics {
  // Returns the latencies of the spans that end within `window_ns` before the last sample. Includes
  // the last span however long it was.
  LatencySnapshot Within(Phase phase, int64_t window_ns) const {
    return figures.spans.Last(window_ns, sampled_ns, static_cast<size_t>(phase));
  }

  MethodKey key;
  int64_t in_flight_count = 0;
  std::optional<int64_t> ended_ns;
  MethodFigures figures;
  int64_t sampled_ns = 0;
};

// The figures of one method over time.
//
// Not thread-safe, except for the recorder, which request threads write to. Memory: up to 86 KiB
// for the last snapshot, and a SparseLatency for each phase of each of the last 60 s. The latter
// take some 300 KiB if thousands of requests a second fill 100 buckets a phase. They take 4.3 MiB
// if each second fills all buckets.
class MethodSeries {
 public:
  // Reads `recorder`, until `version` has ended. A series without `version` never ends.
  MethodSeries(MethodKey key, std::shared_ptr<const MethodRecorder> recorder,
               std::shared_ptr<const RequestRecorder> version = nullptr,
               std::function<int64_t()> in_flight_count = nullptr);

  const MethodKey& key() const { return key_; }
  // The instant at which the version had ended.
  std::optional<int64_t> ended_ns() const;
  // True if Sample has seen the end of the version: nothing is recorded any more.
  bool is_closed() const { return recorder_ == nullptr; }
  int64_t in_flight_count() const;
  // Returns true if the series is worth reporting. Predict and GetModelMetadata are reported from
  // the start, for dashboards. Most versions never receive a request to most of the other methods,
  // and their series would stay empty.
  bool IsTold() const;

  // The requests recorded since the last Sample.
  struct Increment {
    LatencySnapshot latency;
    int64_t failed_count = 0;
  };
  Increment Sample(TimeSpan span);

  // Returns the current figures, with the spans up to the last Sample.
  MethodFigures Figures() const;

 private:
  void AddSpan(TimeSpan span, const MethodSnapshot& now);

  const MethodKey key_;
  std::shared_ptr<const MethodRecorder> recorder_;  // null after the end, which frees its memory
  std::shared_ptr<const RequestRecorder> version_;  // null if it never ends, or has ended
  std::function<int64_t()> in_flight_count_;
  std::optional<int64_t> ended_ns_;
  MethodFigures sampled_;
};

// The statistics of all requests, to live versions and to versions that ended recently.
//
// Thread: any; calls take turns on a mutex. Request threads only record and never take it.
// Owner: the composition root, the makers of versions and the server, shared. Time is passed in. It
// rises from call to call, unless threads overtake each other.
//
// Memory: a MethodSeries for each method of each live version, and of each version that ended in
// the last kEndedKeptNs. At most kEndedVersionCountMax ended versions are kept, and their recorders
// are freed. A ModelHistory for each model that had requests in the last 15 minutes. The totals
// stay for ever: 14 KiB for each method, code and phase of each model that ever had requests.
class RequestStatistics {
 public:
  static constexpr int64_t kEndedKeptNs = 600'000'000'000;
  // The most ended versions that are kept: more than real deployments swap in kEndedKeptNs, fewer
  // than a loop of swaps would leave behind.
  static constexpr size_t kEndedVersionCountMax = 32;
  // The version of the requests to a model that reached no version of it.
  static constexpr int64_t kNoVersion = -1;

  explicit RequestStatistics(int64_t now_ns);

  // Adds a version whose `recorder` is reported from now on, until kEndedKeptNs after its end or
  // until the version is loaded again. `in_flight_count` is called at each report, under the mutex.
  void AddVersion(const std::string& model, int64_t version,
                  const std::shared_ptr<RequestRecorder>& recorder,
                  const std::function<int64_t()>& in_flight_count, int64_t now_ns);
  // The recorder for the requests that find no version and name no model of AddModels. They are
  // reported with model "" and version 0.
  const std::shared_ptr<RequestRecorder>& unmatched() const { return unmatched_.common(); }
  // Returns the recorder for requests to `model` that find no version. Wait-free, any thread.
  RequestRecorder& Unmatched(std::string_view model) const { return unmatched_.Of(model); }
  // Gives each of `models` a recorder of its own: requests to it that find no version are reported
  // with its name and the version kNoVersion from now on.
  void AddModels(const std::vector<std::string>& models) { unmatched_.Add(models); }
  // Returns the recorder for the requests to a method that no version answers: model "", version 0.
  // Returns the same recorder for the same name, and never drops it. No history counts these
  // requests.
  std::shared_ptr<MethodRecorder> MethodWithoutModel(const std::string& method);

  // Ends a second. Called about once a second, by RequestSampler.
  void Sample(int64_t now_ns);
  // Ends a span within the second, so that Between can begin or end at this instant, which it
  // returns.
  int64_t Cut(int64_t now_ns);

  // Returns the statistics by version and method.
  std::vector<MethodStatistics> Methods();
  // Returns the statistics by model and method, over all versions that there ever were: version 0.
  // These counts never go down.
  std::vector<MethodStatistics> ModelMethods();

  // Returns the seconds after `since_ns`, ascending, of one model. Without `model` it returns the
  // seconds of all models and of the unmatched requests. Seconds without requests are included.
  std::vector<HistoryPoint> History(const std::optional<std::string>& model, int64_t since_ns);
  // Returns the latencies of one model's requests in the spans that lie mostly in between.
  LatencySnapshot Between(const std::string& model, int64_t from_ns, int64_t to_ns);

 private:
  using StatisticsByKey = std::map<MethodKey, MethodStatistics>;

  // The methods below need the mutex.
  TimeSpan NextSpan(int64_t now_ns);
  void AddSeries(const std::string& model, int64_t version,
                 const std::shared_ptr<RequestRecorder>& recorder,
                 const std::function<int64_t()>& in_flight_count);
  void AddUnmatchedSeries();
  void SampleSeries(TimeSpan span);
  void EndSecond(int64_t at_ns);
  void FoldEnded(int64_t now_ns);
  void Fold(std::list<MethodSeries>::iterator series);
  void FoldEarlier(const std::string& model, int64_t version, int64_t now_ns);
  bool MayBeOfModel(const MethodKey& key) const;
  void AddTo(const MethodKey& key, const MethodSeries& series, StatisticsByKey* by_key) const;

  std::mutex mutex_;
  UnmatchedRequests unmatched_;
  std::map<std::string, std::shared_ptr<MethodRecorder>> without_model_;
  std::list<MethodSeries> series_;
  // The series of each version. A version that has none is added without a look at all others.
  std::map<std::pair<std::string, int64_t>, int> series_counts_;
  std::map<MethodKey, MethodFigures> folded_;  // by model and method
  int64_t sampled_ns_;
  std::deque<int64_t> second_ends_ns_;  // in the last 15 minutes
  std::map<std::string, ModelHistory> histories_;
  ModelHistory history_of_all_{ModelHistory::kFigureNs};
};

// The thread that ends the seconds of a RequestStatistics. It has normal priority: if the cores are
// busy it comes late, and the second is longer by the delay.
//
// Thread: starts one, `millpond-stats`. Owner: the composition root.
// Cost: once a second, on two cores, some 60 µs for each method of each version that had requests.
class RequestSampler {
 public:
  explicit RequestSampler(std::shared_ptr<RequestStatistics> statistics);
  ~RequestSampler() { Stop(); }
  RequestSampler(const RequestSampler&) = delete;
  RequestSampler& operator=(const RequestSampler&) = delete;

  // Ends the thread. A second call does nothing.
  void Stop();

 private:
  void Run();
  // Waits until `at_ns`. Returns false if Stop was called.
  bool RestUntil(int64_t at_ns);

  const std::shared_ptr<RequestStatistics> statistics_;
  std::mutex mutex_;
  std::condition_variable is_stopping_changed_;
  bool is_stopping_ = false;
  std::thread thread_;
};

// Returns the end of the second after `now_ns`, if a second should have ended at `due_ns`, at or
// before `now_ns`. Skips the seconds that were missed.
int64_t NextSecondNs(int64_t due_ns, int64_t now_ns);

}  // namespace millpond::metrics
