#include "native/pjrt/row_program.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "native/base/clock.h"

namespace millpond::pjrt {
namespace {

// The events of copies that read or write memory of a caller: none is under way once the object is
// gone, also after an error.
class Copies {
 public:
  explicit Copies(const Api& api) : api_(api) {}
  ~Copies() { static_cast<void>(Await()); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void Add(PJRT_Event* event) { events_.push_back(event); }
  // Waits for all of them, and returns the first error.
  base::Status Await() {
    base::Status first;
    for (PJRT_Event* const event : std::exchange(events_, {})) {
      base::Status status = api_.Await(event, "copying");
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  const Api& api_;
  std::vector<PJRT_Event*> events_;
};

// Returns `rows` rows of `row_bytes` at `from`, followed by copies of the last one up to `size`
// rows. The last row is a row that the function takes; zeros may be none.
std::vector<char> FilledUp(const char* from, int64_t rows, int64_t size, size_t row_bytes) {
  std::vector<char> filled(size * row_bytes);
  std::memcpy(filled.data(), from, rows * row_bytes);
  const char* const last = from + (rows - 1) * row_bytes;
  for (int64_t row = rows; row < size; ++row) {
    std::memcpy(filled.data() + row * row_bytes, last, row_bytes);
  }
  return filled;
}

}  // namespace

base::StatusOr<std::unique_ptr<DeviceParameters>> DeviceParameters::Upload(
    std::shared_ptr<const Accelerator> accelerator, const std::vector<HostTensor>& tensors) {
  std::unique_ptr<DeviceParameters> parameters(new DeviceParameters(std::move(accelerator)));
  const Accelerator& target = *parameters->accelerator_;
  Copies copies(target.api());
  for (const HostTensor& tensor : tensors) {
    PJRT_Event* copied = nullptr;
    base::StatusOr<DeviceBuffer> buffer = target.StartUpload(tensor, &copied);
    if (!buffer.ok()) return buffer.status();
    copies.Add(copied);
    parameters->buffers_.push_back(std::move(buffer.value()));
  }
  MILLPOND_RETURN_IF_ERROR(copies.Await());
  for (const DeviceBuffer& buffer : parameters->buffers_) {
    MILLPOND_RETURN_IF_ERROR(buffer.AwaitReady());
    const base::StatusOr<size_t> bytes = buffer.SizeBytes();
    if (!bytes.ok()) return bytes.status();
    parameters->bytes_ += bytes.value();
  }
  return parameters;
}

// One run of the accelerator, for `rows` of the `size` rows of a program.
class RowProgram::OneRun {
 public:
  OneRun(const RowProgram& program, int64_t rows, int64_t size)
      : program_(program),
        accelerator_(*program.parameters_->accelerator()),
        rows_(rows),
        size_(size),
        copies_(accelerator_.api()) {
    // The copies under way point to what lies in it.
    filled_.reserve(program.inputs_.size() + program.outputs_.size());
  }

  // Starts all steps, and waits for the end of the last one.
  base::Status Run(const Executable& executable, const std::vector<const char*>& inputs,
                   const std::vector<char*>& outputs) {
    MILLPOND_RETURN_IF_ERROR(StartInputs(inputs));
    MILLPOND_RETURN_IF_ERROR(Start(executable));
    MILLPOND_RETURN_IF_ERROR(StartOutputs(outputs));
    return Finish(outputs);
  }

  // Does the same, waits for the end of each step, and adds their times to `*counts`.
  base::Status RunTimed(const Executable& executable, const std::vector<const char*>& inputs,
                        const std::vector<char*>& outputs, RunCounts* counts) {
    const int64_t began_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(StartInputs(inputs));
    MILLPOND_RETURN_IF_ERROR(AwaitReady(input_buffers_));
    const int64_t arrived_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(Start(executable));
    MILLPOND_RETURN_IF_ERROR(AwaitReady(results_));
    const int64_t computed_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(StartOutputs(outputs));
    MILLPOND_RETURN_IF_ERROR(Finish(outputs));
    counts->AddTimes(
        {0, arrived_ns - began_ns, computed_ns - arrived_ns, base::MonotonicNs() - computed_ns});
    return {};
  }

 private:
  base::Status StartInputs(const std::vector<const char*>& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const RowType& row = program_.inputs_[i];
      const char* elements = inputs[i];
      if (rows_ < size_) {
        elements = filled_.emplace_back(FilledUp(inputs[i], rows_, size_, row.bytes)).data();
      }
      HostTensor tensor{row.type, {size_}, elements};
      tensor.dims.insert(tensor.dims.end(), row.dims.begin(), row.dims.end());
      PJRT_Event* copied = nullptr;
      base::StatusOr<DeviceBuffer> buffer = accelerator_.StartUpload(tensor, &copied);
      if (!buffer.ok()) return buffer.status();
      copies_.Add(copied);
      input_buffers_.push_back(std::move(buffer.value()));
    }
    return {};
  }

  base::Status Start(const Executable& executable) {
    std::vector<PJRT_Buffer*> arguments;
    for (const DeviceBuffer& input : input_buffers_) arguments.push_back(input.get());
    for (const size_t index : program_.parameter_indices_) {
      arguments.push_back(program_.parameters_->buffer(index));
    }
    return executable.Run(arguments, &results_);
  }

  base::Status StartOutputs(const std::vector<char*>& outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const size_t bytes = size_ * program_.outputs_[i].bytes;
      landed_.push_back(rows_ < size_ ? filled_.emplace_back(bytes).data() : outputs[i]);
      PJRT_Event* copied = nullptr;
      MILLPOND_RETURN_IF_ERROR(results_[i].StartCopy(landed_[i], bytes, &copied));
      copies_.Add(copied);
    }
    return {};
  }

  base::Status Finish(const std::vector<char*>& outputs) {
    MILLPOND_RETURN_IF_ERROR(copies_.Await());
    for (size_t i = 0; rows_ < size_ && i < outputs.size(); ++i) {
      std::memcpy(outputs[i], landed_[i], rows_ * program_.outputs_[i].bytes);
    }
    return {};
  }

  static base::Status AwaitReady(const std::vector<DeviceBuffer>& buffers) {
    for (const DeviceBuffer& buffer : buffers) MILLPOND_RETURN_IF_ERROR(buffer.AwaitReady());
    return {};
  }

  const RowProgram& program_;
  const Accelerator& accelerator_;
  const int64_t rows_;
  const int64_t size_;
  // Declared before the copies, which may read and write it to their end.
  std::vector<std::vector<char>> filled_;
  Copies copies_;
  std::vector<DeviceBuffer> input_buffers_;
  std::vector<DeviceBuffer> results_;
  std::vector<char*> landed_;
};

base::Status RowProgram::AddSize(int64_t rows, std::unique_ptr<Executable> executable) {
  if (executable->output_count() != outputs_.size()) {
    return base::Internal("an executable has " + std::to_string(executable->output_count()) +
                          " outputs, and its function has " + std::to_string(outputs_.size()));
  }
  executables_[rows] = std::move(executable);
  counts_.AddSize(rows);
  return {};
}

std::vector<int64_t> RowProgram::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& [rows, executable] : executables_) sizes.push_back(rows);
  return sizes;
}

base::Status RowProgram::Run(int64_t rows, const std::vector<const char*>& inputs,
                             const std::vector<char*>& outputs) const {
  const int64_t largest = executables_.rbegin()->first;
  std::vector<const char*> from = inputs;
  std::vector<char*> to = outputs;
  while (rows > 0) {
    const int64_t taken = std::min(rows, largest);
    const auto next = executables_.lower_bound(taken);
    OneRun run(*this, taken, next->first);
    const Executable& executable = *next->second;
    MILLPOND_RETURN_IF_ERROR(counts_.TakesTimes() ? run.RunTimed(executable, from, to, &counts_)
                                                  : run.Run(executable, from, to));
    counts_.CountRun(next->first, taken);
    for (size_t i = 0; i < from.size(); ++i) from[i] += taken * inputs_[i].bytes;
    for (size_t i = 0; i < to.size(); ++i) to[i] += taken * outputs_[i].bytes;
    rows -= taken;
  }
  return {};
}

}  // namespace millpond::pjrt
