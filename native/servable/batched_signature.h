#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "native/servable/batch_cost.h"
#include "native/servable/batch_queue.h"
#include "native/servable/batch_settings.h"
#include "native/servable/batch_statistics.h"
#include "native/servable/hot_batches.h"
#include "native/tensor/row_verdict.h"
#include "native/tensor/tensor_compare.h"

namespace millpond::servable {

// The batches of live requests that are compared with single runs.
struct BatchChecks {
  // The number of first batches that are compared: of equal requests, and as many of different
  // requests.
  int64_t first_count = 0;
  // The number of first batches with padded inputs that are compared.
  int64_t first_padded_count = 0;
  // True if one of BatchedSignature::kCheckedEvery batches is compared after that, without end, and
  // as many of the large requests that run in pieces.
  bool goes_on = false;
};

// The evidence that a batch gives about a model if its answers are those of single runs. Each kind
// is counted by itself, because otherwise clients that repeat one request would end the checks.
enum class Evidence : size_t {
  kEqualRows,      // of equal requests, or of one request and padding: shows hardly anything
  kRows,           // its rows do not mix
  kPaddedInputs,   // padded inputs do not matter either
  kEvidenceCount,  // the number of the above
};
constexpr auto kEvidenceCount = static_cast<size_t>(Evidence::kEvidenceCount);

// One signature, or the runs of several signatures at once.
struct BatchedSignature {
  // One batch in this many is compared with single runs, without end. That costs less than 2 % of
  // their time.
  static constexpr uint64_t kCheckedEvery = 64;

  BatchedSignature(std::string its_name, BatchKey its_key, const BatchSettings& settings)
      : name(std::move(its_name)),
        key(its_key),
        cost(settings.rows_max, settings.run_ns_max),
        pads_inputs(settings.pads_inputs) {}
  BatchedSignature(const BatchedSignature&) = delete;
  BatchedSignature& operator=(const BatchedSignature&) = delete;

  void Switch(bool on, std::string reason) {
    const std::lock_guard<std::mutex> lock(mutex);
    refusal = std::move(reason);
    is_on = on;
  }
  void CheckBatches(const BatchChecks& checks) {
    for (size_t i = 0; i < kEvidenceCount; ++i) {
      const bool is_padded = i == static_cast<size_t>(Evidence::kPaddedInputs);
      const int64_t count = is_padded ? checks.first_padded_count : checks.first_count;
      unchecked_counts[i] = std::max(unchecked_counts[i].load(), static_cast<int32_t>(count));
    }
    if (checks.goes_on) checks_go_on = true;
  }
  // Returns true for one of kCheckedEvery batches, or requests in pieces, if checks go on. The
  // checks of padded batches always do, because no graph shows that padding does not matter. They
  // are counted apart: if both kinds came by turns, all samples could be of one of them.
  bool TakeSample(bool is_padded = false) {
    auto& from_count = is_padded ? sampled_from_padded_count : sampled_from_count;
    return (is_padded || checks_go_on.load(std::memory_order_relaxed)) &&
           from_count.fetch_add(1, std::memory_order_relaxed) % kCheckedEvery == 0;
  }
  bool ChecksBatchesOf(Evidence evidence) const {
    return unchecked_counts[static_cast<size_t>(evidence)].load(std::memory_order_relaxed) > 0;
  }
  // Returns true if a batch of `evidence` is to be checked, and counts it.
  bool TakeCheck(Evidence evidence) {
    return ChecksBatchesOf(evidence) &&
           unchecked_counts[static_cast<size_t>(evidence)].fetch_sub(1) > 0;
  }
  void RefusePadding(const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex);
    pads_inputs = false;
    padding_refusal = "its inputs are not padded: " + reason;
  }

  const std::string name;
  const BatchKey key;
  BatchCost cost;
  BatchStatistics statistics;
  HotBatches hot_batches;
  std::atomic<uint64_t> begun_count{0};  // batches
  // The batches that are to be checked, by their evidence.
  std::array<std::atomic<int32_t>, kEvidenceCount> unchecked_counts{};
  std::atomic<bool> checks_go_on{false};
  std::atomic<uint64_t> sampled_from_count{1};  // batches of which TakeSample takes some
  std::atomic<uint64_t> sampled_from_padded_count{1};
  tensor::Magnitudes magnitudes;
  std::atomic<bool> is_on{false};
  std::atomic<bool> pads_inputs;
  std::mutex mutex;
  std::string refusal = "its rows have not been compared yet";  // guarded by mutex
  std::string padding_refusal;                                  // guarded by mutex
  tensor::RowVerdict verdict;                                   // guarded by mutex
};

}  // namespace millpond::servable
