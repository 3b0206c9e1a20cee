#include "native/metrics/request_statistics.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "native/base/clock.h"

namespace millpond::metrics {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

std::vector<MethodStatistics> ValuesOf(std::map<MethodKey, MethodStatistics>&& by_key) {
  std::vector<MethodStatistics> values;
  values.reserve(by_key.size());
  for (auto& [key, statistics] : by_key) values.push_back(std::move(statistics));
  return values;
}

MethodKey OfModel(const MethodKey& key) { return {key.model, 0, key.method}; }

}  // namespace

MethodFigures& MethodFigures::operator+=(const MethodFigures& other) {
  since_start += other.since_start;
  spans += other.spans;
  return *this;
}

MethodSeries::MethodSeries(MethodKey key, std::shared_ptr<const MethodRecorder> recorder,
                           std::shared_ptr<const RequestRecorder> version,
                           std::function<int64_t()> in_flight_count)
    : key_(std::move(key)),
      recorder_(std::move(recorder)),
      version_(std::move(version)),
      in_flight_count_(std::move(in_flight_count)) {}

int64_t MethodSeries::in_flight_count() const {
  return in_flight_count_ == nullptr ? 0 : in_flight_count_();
}

std::optional<int64_t> MethodSeries::ended_ns() const {
  return version_ == nullptr ? ended_ns_ : version_->ended_ns();
}

bool MethodSeries::IsTold() const {
  if (key_.method == MethodName(Method::kPredict)) return true;
  if (key_.method == MethodName(Method::kGetModelMetadata)) return true;
  // A series without a version belongs to a method that was registered by its name.
  if (is_closed()) return sampled_.since_start.count() > 0;
  return version_ == nullptr || recorder_->MayHaveRequests();
}

MethodSeries::Increment MethodSeries::Sample(TimeSpan span) {
  sampled_.spans.ForgetUntil(span.end_ns - MethodFigures::kLongestWindowNs);
  if (is_closed()) return {};
  // Reads the end before the snapshot: if the version has ended, nothing is recorded after the
  // snapshot.
  const std::optional<int64_t> ended_at_ns = ended_ns();
  Increment increment;
  MethodSnapshot now;
  if (recorder_->MayHaveRequests()) now = recorder_->Snapshot();
  if (now.count() > sampled_.since_start.count()) {
    increment.latency = now.phase(Phase::kTotal) - sampled_.since_start.phase(Phase::kTotal);
    increment.failed_count = now.failed_count() - sampled_.since_start.failed_count();
    AddSpan(span, now);
    sampled_.since_start = std::move(now);
  }
  if (ended_at_ns) {
    ended_ns_ = ended_at_ns;
    recorder_.reset();
    version_.reset();
    in_flight_count_ = nullptr;
  }
  return increment;
}

MethodFigures MethodSeries::Figures() const {
  if (is_closed()) return sampled_;
  return {recorder_->Snapshot(), sampled_.spans};
}

void MethodSeries::AddSpan(TimeSpan span, const MethodSnapshot& now) {
  std::vector<SparseLatency> by_phase;
  by_phase.reserve(kPhaseCount);
  for (size_t phase = 0; phase < kPhaseCount; ++phase) {
    by_phase.emplace_back(now.phases[phase] - sampled_.since_start.phases[phase]);
  }
  sampled_.spans.Add(span, std::move(by_phase));
}

RequestStatistics::RequestStatistics(int64_t now_ns) : sampled_ns_(now_ns) {
  AddVersion("", 0, unmatched_.common(), nullptr, now_ns);
}

void RequestStatistics::AddVersion(const std::string& model, int64_t version,
                                   const std::shared_ptr<RequestRecorder>& recorder,
                                   const std::function<int64_t()>& in_flight_count,
                                   int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  FoldEarlier(model, version, now_ns);
  AddSeries(model, version, recorder, in_flight_count);
}

void RequestStatistics::AddSeries(const std::string& model, int64_t version,
                                  const std::shared_ptr<RequestRecorder>& recorder,
                                  const std::function<int64_t()>& in_flight_count) {
  for (const Method method : AllMethods()) {
    std::shared_ptr<const MethodRecorder> of_method(recorder, &recorder->Of(method));
    series_.emplace_back(MethodKey{model, version, MethodName(method)}, std::move(of_method),
                         recorder, in_flight_count);
  }
  series_counts_[{model, version}] += kMethodCount;
}

// Adds the series of the models that have had requests without a version since the last call. Each
// report needs this too: a report between two samples counts the requests up to its own instant.
void RequestStatistics::AddUnmatchedSeries() {
  for (const UnmatchedRequests::Model& model : unmatched_.TakeNew()) {
    AddSeries(model.name, kNoVersion, model.recorder, nullptr);
  }
}

std::shared_ptr<MethodRecorder> RequestStatistics::MethodWithoutModel(const std::string& method) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<MethodRecorder>& recorder = without_model_[method];
  if (recorder == nullptr) {
    recorder = std::make_shared<MethodRecorder>(MethodRecorder::Use::kRare);
    series_.emplace_back(MethodKey{"", 0, method}, recorder);
  }
  return recorder;
}

void RequestStatistics::Sample(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const TimeSpan span = NextSpan(now_ns);
  SampleSeries(span);
  EndSecond(span.end_ns);
  FoldEnded(span.end_ns);
}

int64_t RequestStatistics::Cut(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const TimeSpan span = NextSpan(now_ns);
  SampleSeries(span);
  return span.end_ns;
}

// Returns the span from the last sample to `now_ns`. If threads read the clock and then wait for
// the mutex, the later reading may come first. So a span is made at least 1 ns long.
TimeSpan RequestStatistics::NextSpan(int64_t now_ns) {
  const TimeSpan span{sampled_ns_, std::max(now_ns, sampled_ns_ + 1)};
  sampled_ns_ = span.end_ns;
  return span;
}

void RequestStatistics::SampleSeries(TimeSpan span) {
  AddUnmatchedSeries();
  std::map<std::string, MethodSeries::Increment> by_model;
  MethodSeries::Increment all;
  for (MethodSeries& series : series_) {
    const MethodSeries::Increment increment = series.Sample(span);
    if (increment.latency.count() == 0 || !MayBeOfModel(series.key())) continue;
    for (auto* sum : {&by_model[series.key().model], &all}) {
      sum->latency += increment.latency;
      sum->failed_count += increment.failed_count;
    }
  }
  for (const auto& [model, increment] : by_model) {
    histories_[model].Add(span, increment.latency, increment.failed_count);
  }
  history_of_all_.Add(span, all.latency, all.failed_count);
}

// Returns false for the requests that the control plane answers, because they may take any time and
// are not sent to a model. A request that found no model was meant for one, and counts.
bool RequestStatistics::MayBeOfModel(const MethodKey& key) const {
  return !key.model.empty() || without_model_.count(key.method) == 0;
}

void RequestStatistics::EndSecond(int64_t at_ns) {
  second_ends_ns_.push_back(at_ns);
  while (second_ends_ns_.front() <= at_ns - ModelHistory::kKeptNs) second_ends_ns_.pop_front();
  history_of_all_.EndSecond(at_ns);
  for (auto history = histories_.begin(); history != histories_.end();) {
    history->second.EndSecond(at_ns);
    history = history->second.is_empty() ? histories_.erase(history) : std::next(history);
  }
}

void RequestStatistics::FoldEnded(int64_t now_ns) {
  std::vector<std::list<MethodSeries>::iterator> ended;
  for (auto series = series_.begin(); series != series_.end(); ++series) {
    if (series->is_closed()) ended.push_back(series);
  }
  std::stable_sort(ended.begin(), ended.end(), [](const auto& one, const auto& other) {
    return *one->ended_ns() < *other->ended_ns();
  });
  constexpr size_t kMax = kEndedVersionCountMax * kMethodCount;
  const size_t too_many = ended.size() - std::min(ended.size(), kMax);
  for (size_t i = 0; i < ended.size(); ++i) {
    if (i < too_many || *ended[i]->ended_ns() <= now_ns - kEndedKeptNs) Fold(ended[i]);
  }
  for (auto& [key, figures] : folded_)
    figures.spans.ForgetUntil(now_ns - MethodFigures::kLongestWindowNs);
}

void RequestStatistics::Fold(std::list<MethodSeries>::iterator series) {
  const MethodKey& key = series->key();
  folded_[OfModel(key)] += series->Figures();
  const auto counted = series_counts_.find({key.model, key.version});
  if (counted != series_counts_.end() && --counted->second == 0) series_counts_.erase(counted);
  series_.erase(series);
}

// Folds earlier series of the same version. A version that is loaded again gets a new series,
// because the old series would have two parts.
void RequestStatistics::FoldEarlier(const std::string& model, int64_t version, int64_t now_ns) {
  if (series_counts_.count({model, version}) == 0) return;
  std::vector<std::list<MethodSeries>::iterator> earlier;
  for (auto series = series_.begin(); series != series_.end(); ++series) {
    const MethodKey& key = series->key();
    if (key.model == model && key.version == version) earlier.push_back(series);
  }
  SampleSeries(NextSpan(now_ns));  // The version may have ended since the last sample.
  for (const auto& series : earlier) {
    if (series->is_closed()) Fold(series);
  }
}

std::vector<MethodStatistics> RequestStatistics::Methods() {
  const std::lock_guard lock(mutex_);
  AddUnmatchedSeries();
  StatisticsByKey by_key;
  for (const MethodSeries& series : series_) {
    if (series.IsTold()) AddTo(series.key(), series, &by_key);
  }
  return ValuesOf(std::move(by_key));
}

std::vector<MethodStatistics> RequestStatistics::ModelMethods() {
  const std::lock_guard lock(mutex_);
  AddUnmatchedSeries();
  StatisticsByKey by_key;
  for (const auto& [key, figures] : folded_) {
    by_key[key] = {key, 0, {}, figures, sampled_ns_};
  }
  for (const MethodSeries& series : series_) {
    if (!series.IsTold()) continue;
    AddTo(OfModel(series.key()), series, &by_key);
    by_key[OfModel(series.key())].ended_ns.reset();
  }
  return ValuesOf(std::move(by_key));
}

// Adds a series to the statistics of its key. Two loads of one version number, of which one is
// being unloaded, are one entry.
void RequestStatistics::AddTo(const MethodKey& key, const MethodSeries& series,
                              StatisticsByKey* by_key) const {
  const auto [at, is_first] = by_key->try_emplace(key);
  MethodStatistics& statistics = at->second;
  statistics.key = key;
  statistics.sampled_ns = sampled_ns_;
  statistics.in_flight_count += series.in_flight_count();
  statistics.figures += series.Figures();
  statistics.ended_ns = is_first || !series.ended_ns() ? series.ended_ns() : statistics.ended_ns;
}

std::vector<HistoryPoint> RequestStatistics::History(const std::optional<std::string>& model,
                                                     int64_t since_ns) {
  const std::lock_guard lock(mutex_);
  static const ModelHistory kNone;
  const ModelHistory* history = &history_of_all_;
  if (model) {
    const auto found = histories_.find(*model);
    history = found == histories_.end() ? &kNone : &found->second;
  }
  std::vector<HistoryPoint> points;
  auto point = history->points().begin();
  for (const int64_t at_ns : second_ends_ns_) {
    const bool is_there = point != history->points().end() && point->at_ns == at_ns;
    if (at_ns > since_ns) {
      points.push_back(is_there ? *point : HistoryPoint{at_ns, 0, 0, {}});
    }
    if (is_there) ++point;
  }
  return points;
}

LatencySnapshot RequestStatistics::Between(const std::string& model, int64_t from_ns,
                                           int64_t to_ns) {
  const std::lock_guard lock(mutex_);
  const auto found = histories_.find(model);
  return found == histories_.end() ? LatencySnapshot() : found->second.Between(from_ns, to_ns);
}

int64_t NextSecondNs(int64_t due_ns, int64_t now_ns) {
  return due_ns + ((now_ns - due_ns) / kSecondNs + 1) * kSecondNs;
}

RequestSampler::RequestSampler(std::shared_ptr<RequestStatistics> statistics)
    : statistics_(std::move(statistics)), thread_([this] { Run(); }) {}

void RequestSampler::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  is_stopping_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RequestSampler::Run() {
  pthread_setname_np(pthread_self(), "millpond-stats");
  int64_t due_ns = base::MonotonicNs() + kSecondNs;
  while (RestUntil(due_ns)) {
    const int64_t now_ns = base::MonotonicNs();
    statistics_->Sample(now_ns);
    due_ns = NextSecondNs(due_ns, now_ns);
  }
}

bool RequestSampler::RestUntil(int64_t at_ns) {
  std::unique_lock lock(mutex_);
  while (!is_stopping_ && base::MonotonicNs() < at_ns) {
    is_stopping_changed_.wait_for(lock, std::chrono::nanoseconds(at_ns - base::MonotonicNs()));
  }
  return !is_stopping_;
}

}  // namespace millpond::metrics
