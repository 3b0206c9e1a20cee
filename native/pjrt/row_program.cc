#include "native/pjrt/row_program.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

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

base::Status RowProgram::AddSize(int64_t rows, std::unique_ptr<Executable> executable) {
  if (executable->output_count() != outputs_.size()) {
    return base::Internal("an executable has " + std::to_string(executable->output_count()) +
                          " outputs, and its function has " + std::to_string(outputs_.size()));
  }
  executables_[rows] = std::move(executable);
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
    MILLPOND_RETURN_IF_ERROR(RunOnce(taken, next->first, *next->second, from, to));
    for (size_t i = 0; i < from.size(); ++i) from[i] += taken * inputs_[i].bytes;
    for (size_t i = 0; i < to.size(); ++i) to[i] += taken * outputs_[i].bytes;
    rows -= taken;
  }
  return {};
}

base::Status RowProgram::RunOnce(int64_t rows, int64_t size, const Executable& executable,
                                 const std::vector<const char*>& inputs,
                                 const std::vector<char*>& outputs) const {
  const Accelerator& accelerator = *parameters_->accelerator();
  // Declared before the copies, which may read and write it to their end.
  std::vector<std::vector<char>> filled;
  filled.reserve(inputs.size() + outputs.size());
  Copies copies(accelerator.api());
  std::vector<DeviceBuffer> buffers;
  std::vector<PJRT_Buffer*> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const char* elements = inputs[i];
    if (rows < size) {
      elements = filled.emplace_back(FilledUp(inputs[i], rows, size, inputs_[i].bytes)).data();
    }
    HostTensor tensor{inputs_[i].type, {size}, elements};
    tensor.dims.insert(tensor.dims.end(), inputs_[i].dims.begin(), inputs_[i].dims.end());
    PJRT_Event* copied = nullptr;
    base::StatusOr<DeviceBuffer> buffer = accelerator.StartUpload(tensor, &copied);
    if (!buffer.ok()) return buffer.status();
    copies.Add(copied);
    arguments.push_back(buffer.value().get());
    buffers.push_back(std::move(buffer.value()));
  }
  for (const size_t index : parameter_indices_) arguments.push_back(parameters_->buffer(index));
  std::vector<DeviceBuffer> results;
  MILLPOND_RETURN_IF_ERROR(executable.Run(arguments, &results));
  std::vector<char*> landed;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const size_t bytes = size * outputs_[i].bytes;
    landed.push_back(rows < size ? filled.emplace_back(bytes).data() : outputs[i]);
    PJRT_Event* copied = nullptr;
    MILLPOND_RETURN_IF_ERROR(results[i].StartCopy(landed[i], bytes, &copied));
    copies.Add(copied);
  }
  MILLPOND_RETURN_IF_ERROR(copies.Await());
  for (size_t i = 0; rows < size && i < outputs.size(); ++i) {
    std::memcpy(outputs[i], landed[i], rows * outputs_[i].bytes);
  }
  return {};
}

}  // namespace millpond::pjrt
