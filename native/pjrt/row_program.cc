#include "native/pjrt/row_program.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "native/base/clock.h"
#include "native/pjrt/copies.h"
#include "native/pjrt/device_buffer.h"
#include "native/pjrt/device_schedule.h"
#include "native/pjrt/piece_choice.h"

namespace millpond::pjrt {
namespace {

// The number of runs over which a cost is a mean, so that one slow run changes little.
constexpr int64_t kCostRuns = 8;

// Copies `rows` rows of `row_bytes` at `from` to `to`, followed by copies of the last one up to
// `size` rows. The last row is a row that the function takes; zeros may be none.
void FillUp(const char* from, int64_t rows, int64_t size, size_t row_bytes, char* to) {
  std::memcpy(to, from, rows * row_bytes);
  const char* const last = from + (rows - 1) * row_bytes;
  for (int64_t row = rows; row < size; ++row) {
    std::memcpy(to + row * row_bytes, last, row_bytes);
  }
}

// Tensors begin at a cache line in a staging buffer.
size_t WholeLines(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// One run of the accelerator, for `rows` of the `size` rows of a program.
class RowProgram::OneRun {
 public:
  // Copies the inputs to pinned memory, and fills them up, before the run has its turn, because
  // no other run should wait for that. If it `ends_early`, the turn ends before the outputs are
  // copied.
  OneRun(const RowProgram& program, const ParameterCopy& copy, int64_t rows, int64_t size,
         StagingPool* staging, std::vector<const char*> inputs, bool ends_early)
      : program_(program),
        copy_(copy),
        accelerator_(*program.parameters_->accelerator()),
        rows_(rows),
        size_(size),
        ends_early_(ends_early),
        inputs_(std::move(inputs)),
        copies_(accelerator_.api()) {
    staged_.emplace(staging->Take());
    // Memory that is not pinned is no better than the caller's.
    if (rows == size && !staged_->is_pinned()) return;
    next_ = staged_->data();
    if (next_ == nullptr) {
      own_.reset(new char[program.StagedBytes(size)]);
      next_ = own_.get();
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const size_t row_bytes = program.inputs_[i].bytes;
      char* const filled = Stage(size * row_bytes);
      FillUp(inputs_[i], rows, size, row_bytes, filled);
      inputs_[i] = filled;
    }
  }

  // After an error, the run may be under way. Its memory is charged until nothing uses it.
  ~OneRun() {
    if (!is_finished_) static_cast<void>(AwaitReady(results_));
  }
  OneRun(const OneRun&) = delete;
  OneRun& operator=(const OneRun&) = delete;

  // Starts all steps in its `turn`, and waits for the end of the last one.
  base::Status Run(const Executable& executable, const std::vector<char*>& outputs,
                   DeviceTurns::Turn* turn) {
    turn_ = turn;
    MILLPOND_RETURN_IF_ERROR(StartInputs());
    MILLPOND_RETURN_IF_ERROR(Start(executable));
    MILLPOND_RETURN_IF_ERROR(StartOutputs(outputs));
    if (ends_early_) {
      MILLPOND_RETURN_IF_ERROR(AwaitReady(results_));
      EndTurn();
    }
    return Finish(outputs);
  }

  // Does the same, waits for the end of each step, and adds their times to `*counts`.
  base::Status RunTimed(const Executable& executable, const std::vector<char*>& outputs,
                        DeviceTurns::Turn* turn, int64_t wait_ns, RunCounts* counts) {
    turn_ = turn;
    const int64_t began_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(StartInputs());
    MILLPOND_RETURN_IF_ERROR(AwaitReady(input_buffers_));
    const int64_t arrived_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(Start(executable));
    MILLPOND_RETURN_IF_ERROR(AwaitReady(results_));
    const int64_t computed_ns = base::MonotonicNs();
    if (ends_early_) EndTurn();
    MILLPOND_RETURN_IF_ERROR(StartOutputs(outputs));
    MILLPOND_RETURN_IF_ERROR(Finish(outputs));
    counts->AddTimes({wait_ns, arrived_ns - began_ns, computed_ns - arrived_ns,
                      base::MonotonicNs() - computed_ns});
    return {};
  }

  // Ends the turn, unless it has ended. Returns the time of the accelerator that it took.
  int64_t EndTurn() {
    took_ns_ += turn_->End();
    return took_ns_;
  }

 private:
  // Returns the next `bytes` of the run's memory for its tensors.
  char* Stage(size_t bytes) { return std::exchange(next_, next_ + WholeLines(bytes)); }

  base::Status StartInputs() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const RowType& row = program_.inputs_[i];
      HostTensor tensor{row.type, {size_}, inputs_[i]};
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
      arguments.push_back(copy_.buffer(index));
    }
    return executable.Run(arguments, &results_);
  }

  base::Status StartOutputs(const std::vector<char*>& outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const size_t bytes = size_ * program_.outputs_[i].bytes;
      landed_.push_back(next_ != nullptr ? Stage(bytes) : outputs[i]);
      PJRT_Event* copied = nullptr;
      MILLPOND_RETURN_IF_ERROR(results_[i].StartCopy(landed_[i], bytes, &copied));
      copies_.Add(copied);
    }
    return {};
  }

  base::Status Finish(const std::vector<char*>& outputs) {
    MILLPOND_RETURN_IF_ERROR(copies_.Await());
    is_finished_ = true;
    for (size_t i = 0; next_ != nullptr && i < outputs.size(); ++i) {
      std::memcpy(outputs[i], landed_[i], rows_ * program_.outputs_[i].bytes);
    }
    return {};
  }

  static base::Status AwaitReady(const std::vector<DeviceBuffer>& buffers) {
    for (const DeviceBuffer& buffer : buffers) MILLPOND_RETURN_IF_ERROR(buffer.AwaitReady());
    return {};
  }

  const RowProgram& program_;
  const ParameterCopy& copy_;
  const Accelerator& accelerator_;
  const int64_t rows_;
  const int64_t size_;
  const bool ends_early_;
  bool is_finished_ = false;
  DeviceTurns::Turn* turn_ = nullptr;
  int64_t took_ns_ = 0;
  std::vector<const char*> inputs_;  // of `size_` rows each
  // Both declared before the copies, which may read and write them to their end.
  std::optional<StagingPool::Lease> staged_;
  std::unique_ptr<char[]> own_;  // to fill rows up in if no staging buffer is free
  char* next_ = nullptr;         // in either; null if the run has the caller's memory alone
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
  int64_t bytes = executable->temporary_bytes();
  for (const RowType& input : inputs_) bytes += rows * static_cast<int64_t>(input.bytes);
  for (const RowType& output : outputs_) bytes += rows * static_cast<int64_t>(output.bytes);
  programs_[rows] = {std::move(executable), bytes, std::make_unique<std::atomic<int64_t>>(0),
                     parameters_->accelerator()->MakeStaging(StagedBytes(rows))};
  static_cast<void>(programs_[rows].staging->Take());  // pins the first ones before requests come
  counts_.AddSize(rows);
  return {};
}

size_t RowProgram::StagedBytes(int64_t rows) const {
  size_t bytes = 0;
  for (const RowType& input : inputs_) bytes += WholeLines(rows * input.bytes);
  for (const RowType& output : outputs_) bytes += WholeLines(rows * output.bytes);
  return bytes;
}

std::vector<int64_t> RowProgram::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& [rows, program] : programs_) sizes.push_back(rows);
  return sizes;
}

int64_t RowProgram::run_bytes_max() const {
  int64_t bytes = 0;
  for (const auto& [rows, program] : programs_) bytes = std::max(bytes, program.run_bytes);
  return bytes;
}

base::Status RowProgram::Run(const ParameterCopy& copy, int64_t rows,
                             const std::vector<const char*>& inputs,
                             const std::vector<char*>& outputs, int64_t deadline_ns,
                             int64_t* wait_ns) const {
  std::vector<const char*> from = inputs;
  std::vector<char*> to = outputs;
  while (rows > 0) {
    const int64_t taken = needs_exact_rows_ ? rows : std::min(rows, PieceRows());
    const auto& [size, program] = *programs_.lower_bound(taken);
    MILLPOND_RETURN_IF_ERROR(RunPiece(copy, size, program, taken, from, to, deadline_ns, wait_ns));
    for (size_t i = 0; i < from.size(); ++i) from[i] += taken * inputs_[i].bytes;
    for (size_t i = 0; i < to.size(); ++i) to[i] += taken * outputs_[i].bytes;
    rows -= taken;
  }
  return {};
}

// Returns the rows that one run may have now.
int64_t RowProgram::PieceRows() const {
  if (!parameters_->accelerator()->turns().IsShared()) return programs_.rbegin()->first;
  PieceChoice choice;
  for (const auto& [size, program] : programs_) {
    choice.Add(size, program.cost_ns->load(std::memory_order_relaxed));
  }
  return choice.rows();
}

// Runs one program, once it is the model's turn.
base::Status RowProgram::RunPiece(const ParameterCopy& copy, int64_t size, const Program& program,
                                  int64_t rows, const std::vector<const char*>& inputs,
                                  const std::vector<char*>& outputs, int64_t deadline_ns,
                                  int64_t* all_wait_ns) const {
  const Accelerator& accelerator = *parameters_->accelerator();
  const int64_t cost_ns = program.cost_ns->load(std::memory_order_relaxed);
  // Both outlive the run's copies and buffers, also after an error.
  std::optional<DeviceTurns::Turn> turn;
  std::optional<DeviceMemory::RunCharge> charge;
  OneRun run(*this, copy, rows, size, program.staging.get(), inputs,
             DeviceSchedule::IsLong(cost_ns));
  const int64_t came_ns = base::MonotonicNs();
  auto taken =
      accelerator.turns().Take(parameters_->model(), parameters_->is_low(), cost_ns, deadline_ns);
  if (!taken.ok()) return taken.status();
  turn.emplace(std::move(taken.value()));
  const int64_t wait_ns = base::MonotonicNs() - came_ns;
  if (all_wait_ns != nullptr) *all_wait_ns += wait_ns;
  charge.emplace(accelerator.memory().ChargeRun(parameters_->model(), program.run_bytes));
  if (!charge.value()) {
    return {base::Code::kResourceExhausted, "the accelerator has no memory left for a run"};
  }
  MILLPOND_RETURN_IF_ERROR(
      counts_.BeginRun() ? run.RunTimed(*program.executable, outputs, &*turn, wait_ns, &counts_)
                         : run.Run(*program.executable, outputs, &*turn));
  accelerator.NoteSuccess();
  const int64_t took_ns = run.EndTurn();
  // If two runs end at once, one of them may be left out.
  program.cost_ns->store(cost_ns == 0 ? took_ns : cost_ns + (took_ns - cost_ns) / kCostRuns,
                         std::memory_order_relaxed);
  counts_.CountRun(size, rows);
  return {};
}

}  // namespace millpond::pjrt
