#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/side_times.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::tf {

// The rows of a request of the warm-up, on which both sides are measured. Thread: any.
class SampleRows {
 public:
  // Keeps some rows of `inputs` if they are the first that have rows.
  void Offer(const tensor::TensorList& inputs);
  // Hands the rows out, and keeps none from now on. Empty if none were offered.
  std::optional<tensor::TensorList> Take();

 private:
  std::atomic<bool> is_open_{true};
  std::mutex mutex_;
  std::optional<tensor::TensorList> rows_;  // guarded by the mutex
};

// The two sides of a signature, and the rows to measure them on.
struct MeasuredSides {
  explicit MeasuredSides(const std::vector<int64_t>& sizes) : times(sizes) {}
  pjrt::SideTimes times;
  SampleRows sample;
};

// Runs the signature on `inputs`, on the side that is chosen for their rows.
using RunInputs = std::function<base::Status(const tensor::TensorList& inputs)>;

// Fills `sides->times`: runs each size, the smallest first, several times on each side, on rows of
// the sample or on zeros. Ends at the first run that fails, as one does whose deadline has passed,
// and returns its error. All sizes are on the accelerator then. No request may run meanwhile.
base::Status MeasureSides(const tensor::Signature& signature, const RunInputs& run,
                          MeasuredSides* sides);

}  // namespace millpond::tf
