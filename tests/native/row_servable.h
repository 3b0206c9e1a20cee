#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "tests/native/plain_servable.h"

namespace millpond::testing {

// One run of a RowServable.
struct RowRun {
  const tensor::RunContext& context;
  int64_t version;
  int64_t rows;
  std::vector<int64_t> values;  // of x
};

// A version whose rows show what became of them. Each signature of "serving_default" and "other" is
//
//   x: int64[?,...] -> y, z: y is x plus the version times kVersionUnit, z is -x
//
// So an answer shows the rows and the version that it comes from. A negative x is a bad id, which
// fails the run. Like a session, a run first looks at the cancellation and the deadline of its
// context. Thread: any number of runs.
class RowServable : public FakeServable {
 public:
  static constexpr int64_t kVersionUnit = 1'000'000'000;

  // `watch`, which may be empty, sees each run before it computes its rows, and may fail it.
  using Watch = std::function<base::Status(const RowRun&)>;

  explicit RowServable(servable::ServableId id = {"m", 7}, Watch watch = {})
      : FakeServable(id, {SignatureOf("serving_default"), SignatureOf("other")},
                     [this](const FakeRun& run) {
                       return Compute(run.context, run.inputs, run.outputs, run.result);
                     }),
        watch_(std::move(watch)) {}

  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& context,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override {
    if (!runs_together) return std::nullopt;
    results->resize(signatures.size());
    for (tensor::TensorList& result : *results) {
      base::Status ran = Compute(context, inputs, tensor::OutputSet::All(2), &result);
      if (!ran.ok()) return ran;
    }
    return base::Status();
  }

  static int64_t Y(int64_t x, int64_t version) { return x + version * kVersionUnit; }

  // The rows of all runs that have come as far as their rows, in order.
  std::vector<int64_t> run_rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return run_rows_;
  }

  bool MayChangeAnswers() const override { return changes_answers; }
  // A row of this number changes a variable.
  std::atomic<int64_t> writing_x{INT64_MIN};
  // The runs that changed it.
  int write_count() const { return write_count_; }
  std::atomic<bool> changes_answers{false};

  // Faults of a model, which show only in a batch.
  std::atomic<bool> mixes_rows{false};  // y also has the sum of all x
  std::atomic<bool> loses_rows{false};  // z has one row
  std::atomic<bool> widens_z{false};    // a row of z is as wide as the largest number of the run
  std::atomic<bool> runs_together{false};

 private:
  static tensor::Signature SignatureOf(const std::string& name) {
    tensor::Signature signature;
    signature.name = name;
    signature.inputs = {AnyShapeSpec("x", tensor::dtype::kInt64)};
    signature.outputs = {AnyShapeSpec("y", tensor::dtype::kInt64),
                         AnyShapeSpec("z", tensor::dtype::kInt64)};
    return signature;
  }

  base::Status Compute(const tensor::RunContext& context, const tensor::TensorList& inputs,
                       const tensor::OutputSet& outputs, tensor::TensorList* result) const {
    const OpaqueTensor& x = inputs.storage().tensors[0];
    const RowRun run{context, id().version, x.dims.empty() ? 1 : x.dims[0], NumbersOf<int64_t>(x)};
    if (context.is_cancelled != nullptr && *context.is_cancelled) {
      return {base::Code::kCancelled, "the run saw that it was cancelled"};
    }
    if (base::MonotonicNs() >= context.deadline_ns) {
      return {base::Code::kDeadlineExceeded, "the run saw that its deadline had passed"};
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      run_rows_.push_back(run.rows);
    }
    if (watch_) MILLPOND_RETURN_IF_ERROR(watch_(run));
    const bool writes = std::count(run.values.begin(), run.values.end(), writing_x) > 0;
    if (writes && !context.may_write) {
      return {base::Code::kPermissionDenied, "a request may change a variable"};
    }
    if (writes) write_count_ += 1;
    for (const int64_t value : run.values) {
      if (value < 0) return base::InvalidArgument("bad id " + std::to_string(value));
    }
    result->Reset(outputs.size());
    auto& tensors = result->storage().tensors;
    if (outputs.Contains(0)) tensors[outputs.Rank(0)] = MakeY(run, x);
    if (outputs.Contains(1)) tensors[outputs.Rank(1)] = MakeZ(run, x);
    return {};
  }
  OpaqueTensor MakeY(const RowRun& run, const OpaqueTensor& x) const {
    int64_t mixed = 0;
    if (mixes_rows) {
      for (const int64_t value : run.values) mixed += value;
    }
    std::vector<int64_t> y;
    for (const int64_t value : run.values) y.push_back(Y(value, run.version) + mixed);
    return NumberTensor(tensor::dtype::kInt64, x.dims, y);
  }
  OpaqueTensor MakeZ(const RowRun& run, const OpaqueTensor& x) const {
    std::vector<int64_t> z;
    for (const int64_t value : run.values) z.push_back(-value);
    std::vector<int64_t> dims = x.dims;
    if (widens_z) {
      dims = {run.rows, *std::max_element(run.values.begin(), run.values.end())};
      z.assign(static_cast<size_t>(dims[0] * dims[1]), -1);
    }
    if (loses_rows && !dims.empty()) {
      z.resize(z.size() / static_cast<size_t>(dims[0]));
      dims[0] = 1;
    }
    return NumberTensor(tensor::dtype::kInt64, dims, z);
  }

  const Watch watch_;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> run_rows_;
  mutable std::atomic<int> write_count_{0};
};

// Returns inputs of a RowServable. `width` is the number of values of a row.
inline tensor::TensorList RowInputs(const std::vector<int64_t>& x, int64_t width = 1) {
  tensor::TensorList inputs;
  inputs.storage().tensors = {
      NumberTensor(tensor::dtype::kInt64, {static_cast<int64_t>(x.size()) / width, width}, x)};
  return inputs;
}

}  // namespace millpond::testing
