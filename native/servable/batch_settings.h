#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "native/tensor/tensor_compare.h"

namespace millpond::servable {

// Limits the number of batches that run at the same time, over all versions that share it. Thread:
// any.
class BatchSlots {
 public:
  explicit BatchSlots(int64_t count) : free_count_(count) {}

  // Waits for a free slot until `until_ns`, as of base::MonotonicNs. Returns false if there is none
  // by then.
  bool Take(int64_t until_ns);
  void Give();

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int64_t free_count_;
};

// Holds one of `slots`, for a run.
class SlotHold {
 public:
  // Waits for a slot until `until_ns`. If `slots` is null, there is no limit.
  SlotHold(BatchSlots* slots, int64_t until_ns)
      : slots_(slots), may_run_(slots == nullptr || slots->Take(until_ns)) {}
  ~SlotHold() {
    if (slots_ != nullptr && may_run_) slots_->Give();
  }
  SlotHold(const SlotHold&) = delete;
  SlotHold& operator=(const SlotHold&) = delete;

  // False if no slot was free by then.
  bool may_run() const { return may_run_; }

 private:
  BatchSlots* const slots_;
  const bool may_run_;
};

// How the requests of one version are batched.
struct BatchSettings {
  // The most rows of a batch, and of each piece of a request that is split.
  int64_t rows_max = 1024;
  // The time that a batch may take, and each piece of a request that is split; 0: any.
  int64_t run_ns_max = 10'000'000;
  // Larger requests are run in pieces.
  bool splits = true;
  // The rows that a batch may have, ascending: a batch is padded with copies of a row. Empty: any.
  std::vector<int64_t> allowed_rows;
  // Inputs that differ in their dimensions after the first are padded with zeros.
  bool pads_inputs = false;
  // The most requests of a signature that may wait for a thread; 0: any.
  int64_t waiting_requests_max = 0;
  std::shared_ptr<BatchSlots> slots;  // null: any number of batches at the same time
  // True if the model is compiled for each number of rows. The single runs that batches are
  // compared with are then padded too, because each would otherwise compile another program within
  // a request.
  bool is_compiled = false;
  // The largest difference of the answers of a batch from those of single runs (tensor::Compare).
  double relative_tolerance = tensor::kRoundingTolerance;
  // Signatures whose graph mixes rows are batched like those whose graph shows nothing.
  bool may_mix_rows = false;

  // Returns the rows of a run of `rows` rows, with its padding.
  int64_t PaddedRows(int64_t rows) const;
  // Returns false if a run of `rows` rows would need a compilation of its own.
  bool HasRunSize(int64_t rows) const;
  // Returns the largest number of rows up to `rows` that a run may have; at least the smallest.
  int64_t AllowedRows(int64_t rows) const;
};

// Returns `settings` for a model that is compiled for each number of rows. Unless they name sizes,
// batches are padded to a few: powers of two and the largest.
BatchSettings ForCompiledModel(BatchSettings settings);

}  // namespace millpond::servable
