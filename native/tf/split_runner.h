#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "native/pjrt/run_figures.h"
#include "native/tf/side_measurement.h"
#include "native/tf/signature_runner.h"
#include "native/tf/signature_split.h"

namespace millpond::tf {

// Runs a device part.
class DeviceRunner : public SignatureRunner {
 public:
  // Returns false if a run of `rows` rows cannot be there now, which is counted. Nothing for rows
  // that are not known yet. A run may fail all the same.
  virtual bool MayRun(std::optional<int64_t> rows) const = 0;
  // True if a run finds its parameters there now. Unlike MayRun, it asks for nothing.
  virtual bool IsThere() const = 0;
  // Counts a request that the CPU runs instead.
  virtual void CountCpuRun(pjrt::CpuReason reason) const = 0;
  // Runs the part as Run does, and adds the time of the wait for a turn to `*wait_ns`.
  virtual base::Status RunInTurn(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                                 tensor::TensorList* result, int64_t* wait_ns) const = 0;
  base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const final {
    int64_t wait_ns = 0;
    return RunInTurn(outputs, inputs, result, &wait_ns);
  }
};

// Runs a signature in two parts: the host part, and then the device part with what crosses. If a
// part fails, the CPU runs the whole signature, so that the answer is the CPU's, or its error. It
// does so at once if the device cannot take the run, or if the CPU is chosen for so many rows. A
// trial (pjrt::TunedTrial) is for the device alone.
class SplitRunner final : public SignatureRunner {
 public:
  // `whole` runs the signature on the CPU, `host` the host part (null if it has none), and `device`
  // the device part. Borrows `split` and `sides`; null: all runs are for the device.
  SplitRunner(std::unique_ptr<SignatureRunner> whole, std::unique_ptr<SignatureRunner> host,
              std::unique_ptr<DeviceRunner> device, const SignatureSplit& split,
              MeasuredSides* sides = nullptr)
      : whole_(std::move(whole)),
        host_(std::move(host)),
        device_(std::move(device)),
        split_(split),
        sides_(sides) {}

  const base::Status& made() const override { return whole_->made(); }
  base::Status MakeCallable(const tensor::OutputSet& outputs) const override {
    return whole_->MakeCallable(outputs);
  }
  base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override;

 private:
  pjrt::SidePlan PlanFor(std::optional<int64_t> rows) const;
  base::Status RunOnChosenSide(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                               tensor::TensorList* result) const;
  base::Status RunParts(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                        tensor::TensorList* result, int64_t* wait_ns) const;
  std::optional<int64_t> RowsOf(const tensor::TensorList& inputs) const;
  base::Status Refuse(base::Status status) const;

  const std::unique_ptr<SignatureRunner> whole_;
  const std::unique_ptr<SignatureRunner> host_;
  const std::unique_ptr<DeviceRunner> device_;
  const SignatureSplit& split_;
  MeasuredSides* const sides_;
};

// In the place of a CPU that runs a device part: it refuses each run, because SplitRunner runs the
// whole signature instead.
class RefusingRunner final : public SignatureRunner {
 public:
  const base::Status& made() const override { return made_; }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet&, const tensor::TensorList&,
                   tensor::TensorList*) const override {
    return {base::Code::kUnavailable, "the CPU has to run the whole signature"};
  }

 private:
  const base::Status made_;
};

}  // namespace millpond::tf
