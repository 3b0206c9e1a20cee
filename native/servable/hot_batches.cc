#include "native/servable/hot_batches.h"

#include <algorithm>
#include <utility>

namespace millpond::servable {
namespace {

// Returns the names of the outputs in the set; no name if the set has all of them.
std::vector<std::string> NamesOf(const tensor::Signature& signature,
                                 const tensor::OutputSet& outputs) {
  std::vector<std::string> names;
  if (outputs.IsAll()) return names;
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    if (outputs.Contains(i)) names.push_back(signature.outputs[i].name);
  }
  return names;
}

}  // namespace

void HotBatches::Record(const std::vector<const tensor::Signature*>& signatures,
                        const tensor::OutputSet* outputs, int64_t rows) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const tensor::OutputSet own = outputs == nullptr ? tensor::OutputSet() : *outputs;
  const auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
    return kind.rows == rows && kind.outputs == own && kind.signatures == signatures;
  });
  if (found != kinds_.end()) {
    found->run_count += 1;
  } else if (kinds_.size() < kKeptMax) {
    kinds_.push_back({signatures, own, rows, 1});
  } else {
    const auto rarest =
        std::min_element(kinds_.begin(), kinds_.end(),
                         [](const Kind& a, const Kind& b) { return a.run_count < b.run_count; });
    *rarest = {signatures, own, rows, rarest->run_count + 1};
  }
}

std::vector<HotBatch> HotBatches::Batches() const {
  std::vector<HotBatch> batches;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Kind& kind : kinds_) {
      HotBatch batch{{}, {}, kind.rows, kind.run_count};
      for (const tensor::Signature* signature : kind.signatures) {
        batch.signatures.push_back(signature->name);
      }
      if (kind.signatures.size() == 1) {
        batch.outputs = NamesOf(*kind.signatures.front(), kind.outputs);
      }
      batches.push_back(std::move(batch));
    }
  }
  SortByCount(&batches);
  return batches;
}

void SortByCount(std::vector<HotBatch>* batches) {
  std::stable_sort(batches->begin(), batches->end(),
                   [](const HotBatch& a, const HotBatch& b) { return a.run_count > b.run_count; });
}

}  // namespace millpond::servable
