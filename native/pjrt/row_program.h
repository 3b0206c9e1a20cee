#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/executable.h"
#include "native/pjrt/run_figures.h"

namespace millpond::pjrt {

// The parameters of a version in an accelerator's memory, which its destructor frees.
class DeviceParameters {
 public:
  // Copies `tensors` to the accelerator, all at once, and waits until they are there. Returns
  // RESOURCE_EXHAUSTED if they do not fit; then it leaves nothing there.
  static base::StatusOr<std::unique_ptr<DeviceParameters>> Upload(
      std::shared_ptr<const Accelerator> accelerator, const std::vector<HostTensor>& tensors);

  PJRT_Buffer* buffer(size_t index) const { return buffers_[index].get(); }
  // The bytes that they take there.
  size_t bytes() const { return bytes_; }
  const std::shared_ptr<const Accelerator>& accelerator() const { return accelerator_; }

 private:
  explicit DeviceParameters(std::shared_ptr<const Accelerator> accelerator)
      : accelerator_(std::move(accelerator)) {}

  const std::shared_ptr<const Accelerator> accelerator_;
  std::vector<DeviceBuffer> buffers_;
  size_t bytes_ = 0;
};

// A function of rows that is compiled for some numbers of rows: its sizes. Each input and output
// has the rows as its first dimension, and a row of an output depends on the same row of the inputs
// alone. So a run of fewer rows is filled up to the next size, and a run of more rows than the
// largest size takes several runs of the accelerator.
//
// Thread: any number at once, once all sizes are added.
class RowProgram {
 public:
  // A row of an input or an output: its type, its dimensions without the first, and its bytes.
  struct RowType {
    PJRT_Buffer_Type type = PJRT_Buffer_Type_INVALID;
    std::vector<int64_t> dims;
    size_t bytes = 0;
  };

  // `parameters` follow the inputs as arguments of the executables.
  RowProgram(std::shared_ptr<const DeviceParameters> parameters,
             std::vector<size_t> parameter_indices, std::vector<RowType> inputs,
             std::vector<RowType> outputs)
      : parameters_(std::move(parameters)),
        parameter_indices_(std::move(parameter_indices)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}

  // Adds the executable for runs of `rows` rows. Returns INTERNAL if it has another number of
  // outputs than the function.
  base::Status AddSize(int64_t rows, std::unique_ptr<Executable> executable);

  // Computes `rows` rows, 1 or more. `inputs` and `outputs` are the elements of the first row of
  // each; all rows of a tensor follow it. Returns the accelerator's error; `outputs` are undefined
  // then.
  base::Status Run(int64_t rows, const std::vector<const char*>& inputs,
                   const std::vector<char*>& outputs) const;

  std::vector<int64_t> sizes() const;
  bool HasSize(int64_t rows) const { return executables_.count(rows) > 0; }
  // The counts of the runs, for what runs the signature elsewhere, too.
  RunCounts& counts() const { return counts_; }

 private:
  class OneRun;

  const std::shared_ptr<const DeviceParameters> parameters_;
  const std::vector<size_t> parameter_indices_;
  const std::vector<RowType> inputs_;
  const std::vector<RowType> outputs_;
  std::map<int64_t, std::unique_ptr<Executable>> executables_;
  mutable RunCounts counts_;
};

}  // namespace millpond::pjrt
