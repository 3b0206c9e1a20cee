#include "native/metrics/request_recorder.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

namespace millpond::metrics {
namespace {

using Use = MethodRecorder::Use;

constexpr auto kOk = static_cast<size_t>(base::Code::kOk);
constexpr auto kBatch = static_cast<size_t>(Phase::kBatch);

// Only Predict may be hot.
constexpr Use UseOf(Method method, Use predict) {
  return method == Method::kPredict ? predict : Use::kRare;
}

template <size_t... I>
std::array<MethodRecorder, kMethodCount> MakeRecorders(Use predict,
                                                       std::index_sequence<I...> /*methods*/) {
  return {MethodRecorder(UseOf(static_cast<Method>(I), predict))...};
}

}  // namespace

int64_t RequestSnapshot::request_count() const {
  return std::accumulate(count_by_code.begin(), count_by_code.end(), int64_t{0});
}

RequestSnapshot RequestSnapshot::Since(const RequestSnapshot& earlier) const {
  RequestSnapshot difference{latency - earlier.latency, count_by_code};
  for (size_t code = 0; code < count_by_code.size(); ++code) {
    difference.count_by_code[code] -= earlier.count_by_code[code];
  }
  return difference;
}

LatencySnapshot MethodSnapshot::latency(base::Code code) const {
  const auto found = by_code.find(code);
  return found == by_code.end() ? LatencySnapshot() : found->second;
}

int64_t MethodSnapshot::failed_count() const {
  const auto ok = by_code.find(base::Code::kOk);
  return count() - (ok == by_code.end() ? 0 : ok->second.count());
}

MethodSnapshot& MethodSnapshot::operator+=(const MethodSnapshot& other) {
  for (const auto& [code, latency] : other.by_code) by_code[code] += latency;
  for (size_t phase = 0; phase < kPhaseCount; ++phase) phases[phase] += other.phases[phase];
  row_count += other.row_count;
  return *this;
}

LatencyHistogram& LazyHistogram::Make(LatencyHistogram::Use use) {
  auto made = std::make_unique<LatencyHistogram>(use);
  LatencyHistogram* kept = nullptr;
  if (histogram_.compare_exchange_strong(kept, made.get(), std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *kept;
}

LatencySnapshot LazyHistogram::Snapshot() const {
  const LatencyHistogram* const histogram = histogram_.load(std::memory_order_acquire);
  return histogram == nullptr ? LatencySnapshot() : histogram->Snapshot();
}

MethodRecorder::MethodRecorder(Use use)
    : use_(use),
      hot_rows_(use == Use::kRare ? nullptr
                                  : std::make_unique<base::Sharded<RowCell>>(
                                        base::ShardCountForRequestThreads())) {}

void MethodRecorder::Allocate(bool has_batches) {
  if (use_ == Use::kRare) return;
  totals_by_code_[kOk].Get(use_);
  for (size_t phase = 0; phase < kTimedPhaseCount; ++phase) {
    if (phase != kBatch || has_batches) phases_[phase].Get(use_);
  }
}

void MethodRecorder::Record(base::Code code, const PhaseTimes& times) {
  for (size_t phase = 0; phase < kTimedPhaseCount; ++phase) {
    if (times.ns[phase] >= 0) phases_[phase].Get(use_).Record(times.ns[phase]);
  }
  if (code == base::Code::kOk) {
    std::atomic<int64_t>& rows = hot_rows_ == nullptr ? rare_row_count_ : hot_rows_->Mine().count;
    rows.fetch_add(times.row_count, std::memory_order_relaxed);
  }
  // Recorded last, because the total is the count of the request.
  const Use use = code == base::Code::kOk ? use_ : Use::kRare;
  totals_by_code_[static_cast<size_t>(code)].Get(use).Record(times[Phase::kTotal]);
}

int64_t MethodRecorder::RowCount() const {
  int64_t count = rare_row_count_.load(std::memory_order_relaxed);
  if (hot_rows_ == nullptr) return count;
  for (const RowCell& cell : *hot_rows_) count += cell.count.load(std::memory_order_relaxed);
  return count;
}

MethodSnapshot MethodRecorder::Snapshot() const {
  MethodSnapshot snapshot;
  LatencySnapshot& total = snapshot.phases[static_cast<size_t>(Phase::kTotal)];
  for (size_t code = 0; code < totals_by_code_.size(); ++code) {
    LatencySnapshot latency = totals_by_code_[code].Snapshot();
    if (latency.count() == 0) continue;
    total += latency;
    snapshot.by_code.emplace(static_cast<base::Code>(code), std::move(latency));
  }
  // Read after the codes: a request that they count has already recorded its phases.
  for (size_t phase = 0; phase < kTimedPhaseCount; ++phase) {
    snapshot.phases[phase] = phases_[phase].Snapshot();
  }
  snapshot.row_count = RowCount();
  return snapshot;
}

bool MethodRecorder::MayHaveRequests() const {
  return std::any_of(totals_by_code_.begin(), totals_by_code_.end(),
                     [](const LazyHistogram& total) { return total.is_made(); });
}

RequestSnapshot MethodRecorder::Summary() const {
  RequestSnapshot snapshot;
  for (size_t code = 0; code < totals_by_code_.size(); ++code) {
    const LatencySnapshot latency = totals_by_code_[code].Snapshot();
    snapshot.count_by_code[code] = latency.count();
    snapshot.latency += latency;
  }
  return snapshot;
}

RequestSnapshot RequestRecorder::ModelRuns() const {
  RequestSnapshot runs;
  for (const Method method : AllMethods()) {
    if (!RunsModel(method) || !Of(method).MayHaveRequests()) continue;
    const RequestSnapshot summary = Of(method).Summary();
    runs.latency += summary.latency;
    for (size_t code = 0; code < runs.count_by_code.size(); ++code) {
      runs.count_by_code[code] += summary.count_by_code[code];
    }
  }
  return runs;
}

std::array<Method, kMethodCount> AllMethods() {
  std::array<Method, kMethodCount> methods{};
  for (size_t i = 0; i < kMethodCount; ++i) methods[i] = static_cast<Method>(i);
  return methods;
}

RequestRecorder::RequestRecorder(MethodRecorder::Use predict)
    : methods_(MakeRecorders(predict, std::make_index_sequence<kMethodCount>())) {}

bool RequestRecorder::MayHaveRequests() const {
  return std::any_of(methods_.begin(), methods_.end(),
                     [](const MethodRecorder& method) { return method.MayHaveRequests(); });
}

void RequestRecorder::MarkEnded(int64_t now_ns) {
  int64_t not_yet = 0;
  ended_ns_.compare_exchange_strong(not_yet, now_ns, std::memory_order_acq_rel);
}

std::optional<int64_t> RequestRecorder::ended_ns() const {
  const int64_t ended_ns = ended_ns_.load(std::memory_order_acquire);
  if (ended_ns == 0) return {};
  return ended_ns;
}

}  // namespace millpond::metrics
