// Measures what a request that its model's log samples costs the thread that answered it: the
// references to its tensors after the run, and its record after the reply. Nothing else runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "native/bench/idle_servable.h"
#include "native/bench/measure.h"
#include "native/inference/run_log.h"
#include "native/tf/record_frames.h"

namespace millpond::bench {
namespace {

constexpr size_t kQueueBytes = size_t{64} << 20U;
constexpr int kRoundCount = 400;
constexpr int kRequestsPerRound = 100;  // in a row; they fit into the queue

void MakeOutputs(int64_t row_count, tensor::TensorList* outputs) {
  outputs->Reset(2);
  const auto make = [&](int64_t width, size_t index) {
    return tensor::MakeTensor(tensor::dtype::kFloat, {row_count, width}, index, outputs).ok();
  };
  if (!make(1, 0) || !make(kEmbeddingSize, 1)) std::abort();
}

class LoggedRequests {
 public:
  LoggedRequests(int64_t row_count, bool has_words)
      : entry_(std::make_unique<IdleServable>(has_words ? 3 : 2), nullptr, log_) {
    servable::RequestLogSettings settings;
    settings.sampling_rate = 1;
    settings.inputs.are_all = settings.outputs.are_all = true;
    log_->Set(settings);
    const auto& servable = static_cast<const IdleServable&>(entry_.servable());
    run_.servable = &servable;
    run_.signatures = {&servable.signature()};
    run_.outputs = tensor::OutputSet::All(2);
    MakeInputs(row_count, has_words, &run_.inputs);
    run_.results.resize(1);
    MakeOutputs(row_count, &run_.results[0]);
  }

  // Logs a round of requests. Returns the thread's time for each, and empties the queue.
  int64_t RoundNs() {
    const int64_t start_ns = ThreadCpuNs();
    for (int i = 0; i < kRequestsPerRound; ++i) Request();
    const int64_t round_ns = ThreadCpuNs() - start_ns;
    while (queue_->used_bytes() > 0) {
      queue_->RemoveUpTo(tf::ReadLoggedBatches(*queue_, kQueueBytes).end);
    }
    return round_ns / kRequestsPerRound;
  }

  int64_t dropped_count() const { return log_->Statistics().dropped_count; }

 private:
  void Request() {
    inference::RunLog run_log;
    run_log.Keep(run_, log_);
    run_log.Hold(servable::ServableHandle(&entry_));
    run_log.Give(1, 1, "");
  }

  const std::shared_ptr<servable::RecordQueue> queue_ =
      std::make_shared<servable::RecordQueue>(kQueueBytes);
  const std::shared_ptr<servable::RequestLog> log_ =
      std::make_shared<servable::RequestLog>(queue_, 1);
  servable::ServableEntry entry_;
  servable::PreparedRun run_;
};

void MeasureRows(int64_t row_count, bool has_words) {
  LoggedRequests requests(row_count, has_words);
  std::vector<int64_t> round_ns;
  for (int i = 0; i < kRoundCount; ++i) round_ns.push_back(requests.RoundNs());
  std::sort(round_ns.begin(), round_ns.end());
  if (requests.dropped_count() > 0) std::abort();
  std::printf("rows=%-5lld %-9s cpu_ns p10=%lld p50=%lld p90=%lld\n",
              static_cast<long long>(row_count), has_words ? "strings" : "numbers",
              static_cast<long long>(round_ns[kRoundCount / 10]),
              static_cast<long long>(round_ns[kRoundCount / 2]),
              static_cast<long long>(round_ns[kRoundCount * 9 / 10]));
}

}  // namespace
}  // namespace millpond::bench

int main() {
  for (const int64_t row_count : {1, 100, 1'000}) {
    millpond::bench::MeasureRows(row_count, /*has_words=*/false);
    millpond::bench::MeasureRows(row_count, /*has_words=*/true);
  }
}
