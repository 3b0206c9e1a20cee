#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"

namespace millpond::servable {

// Batches of one kind that a version has run. By names, because another version repeats them. A
// value.
struct HotBatch {
  std::vector<std::string> signatures;  // several signatures ran together
  std::vector<std::string> outputs;     // of one signature; empty: all
  int64_t rows = 0;                     // with padding
  int64_t run_count = 0;                // about
};

// The kinds of batches that one signature of a version runs most often, so that its next version
// can run them before it serves. A kind is the signatures, the set of outputs and the rows.
//
// It keeps kKeptMax kinds. A further kind replaces the rarest one and takes over its count, so that
// a kind that is frequent from now on stays.
//
// Thread: any. Record takes a lock if it is free; if not, the batch is not recorded. Cost: one pass
// over the kinds, 50 ns.
class HotBatches {
 public:
  static constexpr size_t kKeptMax = 32;

  // Borrows the signatures. `outputs` is null for a batch of several signatures.
  void Record(const std::vector<const tensor::Signature*>& signatures,
              const tensor::OutputSet* outputs, int64_t rows);

  // Returns the kinds, the most frequent one first. The signatures must still exist.
  std::vector<HotBatch> Batches() const;

 private:
  struct Kind {
    std::vector<const tensor::Signature*> signatures;
    tensor::OutputSet outputs;
    int64_t rows = 0;
    int64_t run_count = 0;
  };

  mutable std::mutex mutex_;
  std::vector<Kind> kinds_;  // guarded by mutex_
};

// Sorts batches by their counts, the most frequent one first.
void SortByCount(std::vector<HotBatch>* batches);

}  // namespace millpond::servable
