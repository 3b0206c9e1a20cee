#pragma once

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
#include <vector>

#include "native/metrics/method_series.h"
#include "native/metrics/model_history.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/unmatched_requests.h"

namespace millpond::metrics {

// The requests to one method of one version at one moment. A value.
struct MethodStatistics {
  LatencySnapshot Within(Phase phase, int64_t window_ns) const {
    return figures.Within(phase, window_ns, sampled_ns);
  }

  MethodKey key;
  int64_t in_flight_count = 0;
  std::optional<int64_t> ended_ns;
  MethodFigures figures;
  int64_t sampled_ns = 0;
};

// All that is recorded of requests, of live versions and of those that ended lately.
//
// Thread: any; calls take turns on a mutex that no request thread takes, which only records.
// Owner: the composition root, the versions' makers and the server, shared. Time is passed in, and
// rises from call to call but for threads that overtake each other.
// Memory: what MethodSeries says for each method of each version that is there or ended in the last
// kEndedKeptNs (at most kEndedVersionCountMax of these; their recorders are freed), and what
// ModelHistory says for each model that had requests in the last 15 minutes. The totals stay, 14
// KiB for each method, code and phase of each model that ever had requests.
class RequestStatistics {
 public:
  static constexpr int64_t kEndedKeptNs = 600'000'000'000;
  // Above what is swapped in earnest; below what a loop of swaps would leave behind.
  static constexpr size_t kEndedVersionCountMax = 32;
  // Of the requests to a model that reached no version of it.
  static constexpr int64_t kNoVersion = -1;

  explicit RequestStatistics(int64_t now_ns);

  // From now on `recorder` is told of, until kEndedKeptNs after its end or until the version is
  // there again; `in_flight_count` is asked at each look, under the mutex.
  void AddVersion(const std::string& model, int64_t version,
                  const std::shared_ptr<RequestRecorder>& recorder,
                  const std::function<int64_t()>& in_flight_count, int64_t now_ns);
  // For the requests that find no version and name no model of AddModels: model "", version 0.
  const std::shared_ptr<RequestRecorder>& unmatched() const { return unmatched_.common(); }
  // Returns the recorder for requests to `model` that find no version. Wait-free, any thread.
  RequestRecorder& Unmatched(std::string_view model) const { return unmatched_.Of(model); }
  // From now on requests to `models` that find no version count as theirs: version kNoVersion.
  void AddModels(const std::vector<std::string>& models) { unmatched_.Add(models); }
  // For the requests to a method that no version answers: model "", version 0. Until the end, and
  // the same for the same name. No history counts them.
  std::shared_ptr<MethodRecorder> MethodWithoutModel(const std::string& method);

  // Ends a second: about once a second, by RequestSampler.
  void Sample(int64_t now_ns);
  // Ends a span within the second, so that Between can begin or end here. Returns the instant.
  int64_t Cut(int64_t now_ns);

  // By version and method.
  std::vector<MethodStatistics> Methods();
  // By model and method, over all versions that ever were: version 0. These never go down.
  std::vector<MethodStatistics> ModelMethods();

  // Seconds after `since_ns`, ascending: of one model, or of all and of the unmatched requests.
  // Those without requests too.
  std::vector<HistoryPoint> History(const std::optional<std::string>& model, int64_t since_ns);
  // One model's requests of the spans that lie mostly in between.
  LatencySnapshot Between(const std::string& model, int64_t from_ns, int64_t to_ns);

 private:
  using StatisticsByKey = std::map<MethodKey, MethodStatistics>;

  // These need the mutex.
  TimeSpan NextSpan(int64_t now_ns);
  void AddSeries(const std::string& model, int64_t version,
                 const std::shared_ptr<RequestRecorder>& recorder,
                 const std::function<int64_t()>& in_flight_count);
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
  std::map<MethodKey, MethodFigures> folded_;  // by model and method
  int64_t sampled_ns_;
  std::deque<int64_t> second_ends_ns_;  // of the last 15 minutes
  std::map<std::string, ModelHistory> histories_;
  ModelHistory history_of_all_{ModelHistory::kFigureNs};
};

}  // namespace millpond::metrics
