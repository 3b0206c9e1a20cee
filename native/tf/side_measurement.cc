#include "native/tf/side_measurement.h"

#include <algorithm>
#include <utility>

#include "native/pjrt/run_figures.h"
#include "native/tensor/tensor_rows.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using base::Status;
using pjrt::Side;
using tensor::TensorList;

// Rows differ in what they look up, so a few of them are kept.
constexpr int64_t kSampleRowsMax = 16;
// The times of each side, for a median.
constexpr int kRunCount = 5;
constexpr Side kSides[] = {Side::kCpu, Side::kAccelerator};

// Returns a row of zeros, or of empty strings. An unknown size is 1.
TensorList ZeroRow(const tensor::Signature& signature) {
  TensorList row;
  for (const tensor::TensorSpec& input : signature.inputs) {
    tensorflow::TensorShape shape;
    for (const int64_t size : input.dims) shape.AddDim(std::max<int64_t>(size, 1));
    tensorflow::Tensor zeros(static_cast<tensorflow::DataType>(input.dtype), shape);
    const auto bytes = zeros.tensor_data();
    if (input.dtype != tensorflow::DT_STRING) {
      std::fill_n(const_cast<char*>(bytes.data()), bytes.size(), '\0');
    }
    row.storage().tensors.push_back(std::move(zeros));
  }
  return row;
}

// Repeats the rows of `sample` up to `rows` rows.
base::StatusOr<TensorList> Repeat(const TensorList& sample, int64_t rows) {
  const int64_t sample_rows = *tensor::CountRows(sample);
  std::vector<tensor::RowRange> parts;
  for (int64_t done = 0; done < rows; done += sample_rows) {
    parts.push_back({&sample, 0, std::min(sample_rows, rows - done)});
  }
  TensorList repeated;
  MILLPOND_RETURN_IF_ERROR(tensor::JoinRows(parts, tensor::LayoutOf(sample), rows, &repeated));
  return repeated;
}

// The first run of a size is slow on either side, so it is not timed.
Status MeasureSize(int64_t size, const TensorList& inputs, const RunInputs& run,
                   pjrt::SideTimes* times) {
  for (int i = 0; i <= kRunCount; ++i) {
    times->TimeAll(i > 0);
    for (const Side side : kSides) {
      times->Choose(size, side, pjrt::SideTimes::kNoProbes);
      MILLPOND_RETURN_IF_ERROR(run(inputs));
    }
  }
  return {};
}

Status MeasureSizes(const TensorList& sample, const RunInputs& run, pjrt::SideTimes* times) {
  for (const int64_t size : times->sizes()) {
    const base::StatusOr<TensorList> inputs = Repeat(sample, size);
    if (!inputs.ok()) return inputs.status();
    // The first runs of a program wait for each stage, which takes longer.
    for (int64_t i = 0; size == times->sizes().front() && i < pjrt::RunCounts::kTimedFirst; ++i) {
      MILLPOND_RETURN_IF_ERROR(run(inputs.value()));
    }
    MILLPOND_RETURN_IF_ERROR(MeasureSize(size, inputs.value(), run, times));
  }
  return {};
}

}  // namespace

void SampleRows::Offer(const TensorList& inputs) {
  if (!is_open_.load(std::memory_order_relaxed)) return;
  const std::optional<int64_t> count = tensor::CountRows(inputs);
  if (!count) return;
  const std::lock_guard lock(mutex_);
  if (!is_open_.exchange(false)) return;
  TensorList kept;
  const tensor::RowRange first = {&inputs, 0, std::min(*count, kSampleRowsMax)};
  if (tensor::JoinRows({first}, tensor::LayoutOf(inputs), first.count, &kept).ok()) {
    rows_ = std::move(kept);
  }
}

std::optional<TensorList> SampleRows::Take() {
  const std::lock_guard lock(mutex_);
  is_open_.store(false);
  return std::exchange(rows_, std::nullopt);
}

Status MeasureSides(const tensor::Signature& signature, const RunInputs& run,
                    MeasuredSides* sides) {
  std::optional<TensorList> sample = sides->sample.Take();
  if (!sample) sample = ZeroRow(signature);
  if (!tensor::CountRows(*sample)) {
    return base::FailedPrecondition("the inputs of '" + signature.name + "' have no rows");
  }
  Status measured = MeasureSizes(*sample, run, &sides->times);
  sides->times.TimeAll(false);
  for (const int64_t size : sides->times.sizes()) {
    sides->times.Choose(size, Side::kAccelerator, pjrt::SideTimes::kNoProbes);
  }
  return measured;
}

}  // namespace millpond::tf
