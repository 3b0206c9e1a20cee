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
#include "native/pjrt/keep_for_ever.h"
#include "native/pjrt/piece_choice.h"
#include "native/pjrt/tuned_trial.h"

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

// Returns the places of tensors of `rows` rows.
PackedTensors Place(const std::vector<size_t>& row_bytes, int64_t rows) {
  std::vector<size_t> bytes;
  for (const size_t row : row_bytes) bytes.push_back(row * static_cast<size_t>(rows));
  return PackedTensors(bytes);
}

// Returns the place of the outputs in a staging buffer: after the inputs.
size_t OutputsBegin(const PackedTensors& inputs) {
  return PackedTensors::RoundUp(inputs.bytes, PackedTensors::kLineBytes);
}

}  // namespace

// All that a run uses until its end. A device that is gone may use it for ever, so it is kept then.
// Declared so that memory outlives the buffers, and the charge all of them.
struct RowProgram::RunUse {
  std::optional<DeviceMemory::RunCharge> charge;  // once it has its turn
  std::shared_ptr<StagingPool> pool;
  StagingPool::Lease staged;
  std::shared_ptr<char> own;  // if no staging buffer is free
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<const ParameterCopy> copy;
  std::vector<DeviceBuffer> inputs;  // one block, once it is made
  std::vector<DeviceBuffer> results;
};

// One run of a program, for `rows` of its `size` rows.
//
// A run that has not ended within Accelerator::stall_ns never does, as far as the server knows: the
// accelerator counts as lost then, and the run ends with UNAVAILABLE.
class RowProgram::OneRun {
 public:
  // Copies the inputs to pinned memory, and fills them up, before the run has its turn, because no
  // other run should wait for that. If it `ends_early`, the turn ends before the outputs are
  // copied.
  OneRun(const RowProgram& rows_of, const Program& program,
         std::shared_ptr<const Executable> executable, const ParameterCopy& copy, int64_t rows,
         int64_t size, const std::vector<const char*>& inputs, bool ends_early)
      : rows_of_(rows_of),
        program_(program),
        accelerator_(*rows_of.parameters_->accelerator()),
        rows_(rows),
        ends_early_(ends_early),
        use_(new RunUse{{},
                        program.staging,
                        program.staging->Take(),
                        nullptr,
                        std::move(executable),
                        copy.shared_from_this(),
                        {},
                        {}}),
        copies_(accelerator_.api()) {
    char* block = use_->staged.data();
    if (block == nullptr && rows_of.take_memory_) {
      use_->own = rows_of.take_memory_(OutputsBegin(program.inputs) + program.outputs.bytes);
      block = use_->own.get();
    }
    if (block == nullptr) return;
    inputs_ = block;
    landed_ = block + OutputsBegin(program.inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      FillUp(inputs[i], rows, size, rows_of.input_bytes_[i], block + program.inputs.offsets[i]);
    }
  }

  // After an error, the run may be under way. Its memory is charged until nothing uses it.
  ~OneRun() {
    if (is_finished_) return;
    static_cast<void>(AwaitReady(&use_->results));
    static_cast<void>(AwaitCopies());
  }
  OneRun(const OneRun&) = delete;
  OneRun& operator=(const OneRun&) = delete;

  // False if this process has no memory left for the run, which must not begin then.
  bool has_memory() const { return inputs_ != nullptr; }

  // Makes all steps in its `turn`, and waits for the inputs' arrival and for the last one's end.
  base::Status Run(const std::vector<char*>& outputs, DeviceTurns::Turn* turn,
                   DeviceMemory::RunCharge charge) {
    Begin(turn, std::move(charge));
    MILLPOND_RETURN_IF_ERROR(SendInputs());
    MILLPOND_RETURN_IF_ERROR(Start());
    MILLPOND_RETURN_IF_ERROR(StartOutputs());
    if (ends_early_) {
      MILLPOND_RETURN_IF_ERROR(AwaitReady(&use_->results));
      EndTurn();
    }
    return Finish(outputs);
  }

  // Does the same, waits for the end of each step, and adds their times to `*counts`.
  base::Status RunTimed(const std::vector<char*>& outputs, DeviceTurns::Turn* turn,
                        DeviceMemory::RunCharge charge, int64_t wait_ns, RunCounts* counts) {
    Begin(turn, std::move(charge));
    const int64_t began_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(SendInputs());
    const int64_t arrived_ns = base::MonotonicNs();
    MILLPOND_RETURN_IF_ERROR(Start());
    MILLPOND_RETURN_IF_ERROR(AwaitReady(&use_->results));
    const int64_t computed_ns = base::MonotonicNs();
    if (ends_early_) EndTurn();
    MILLPOND_RETURN_IF_ERROR(StartOutputs());
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
  void Begin(DeviceTurns::Turn* turn, DeviceMemory::RunCharge charge) {
    turn_ = turn;
    use_->charge.emplace(std::move(charge));
  }

  // Returns once the inputs are there: see Executable::Run.
  base::Status SendInputs() {
    const size_t bytes = program_.inputs.bytes;
    const auto word_count = static_cast<int64_t>(bytes / PackedTensors::kWordBytes);
    PJRT_Event* copied = nullptr;
    base::StatusOr<DeviceBuffer> buffer =
        accelerator_.StartUpload({PJRT_Buffer_Type_U32, {word_count}, inputs_, bytes}, &copied);
    if (!buffer.ok()) return buffer.status();
    copies_.Add(copied);
    use_->inputs.push_back(std::move(buffer.value()));
    return AwaitReady(&use_->inputs);
  }

  base::Status Start() {
    std::vector<PJRT_Buffer*> arguments = {use_->inputs.front().get()};
    for (const size_t index : rows_of_.parameter_indices_) {
      arguments.push_back(use_->copy->buffer(index));
    }
    return use_->executable->Run(arguments, &use_->results);
  }

  base::Status StartOutputs() {
    PJRT_Event* copied = nullptr;
    MILLPOND_RETURN_IF_ERROR(
        use_->results.front().StartCopy(landed_, program_.outputs.bytes, &copied));
    copies_.Add(copied);
    return {};
  }

  base::Status Finish(const std::vector<char*>& outputs) {
    MILLPOND_RETURN_IF_ERROR(AwaitCopies());
    is_finished_ = true;
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::memcpy(outputs[i], landed_ + program_.outputs.offsets[i],
                  rows_ * rows_of_.output_bytes_[i]);
    }
    return {};
  }

  base::Status AwaitReady(const std::vector<DeviceBuffer>* buffers) {
    for (const DeviceBuffer& buffer : *buffers) {
      base::Status ready;
      if (!buffer.AwaitReadyFor(accelerator_.stall_ns(), &ready)) return Abandon(std::move(ready));
      MILLPOND_RETURN_IF_ERROR(ready);
    }
    return {};
  }

  base::Status AwaitCopies() {
    base::Status copied;
    if (copies_.AwaitFor(accelerator_.stall_ns(), &copied)) return copied;
    return Abandon(std::move(copied));
  }

  // Leaves the run to a device that is gone, with all that it uses.
  base::Status Abandon(base::Status stalled) {
    is_finished_ = true;
    copies_.Abandon();
    use_->staged.Abandon();
    use_->pool.reset();  // has a thread, and needs none any more
    KeepForEver(std::move(use_));
    accelerator_.CountAsLost();
    return stalled;
  }

  const RowProgram& rows_of_;
  const Program& program_;
  const Accelerator& accelerator_;
  const int64_t rows_;
  const bool ends_early_;
  bool is_finished_ = false;  // or abandoned
  DeviceTurns::Turn* turn_ = nullptr;
  int64_t took_ns_ = 0;
  // Declared before the copies, which may read and write its memory to their end.
  std::unique_ptr<RunUse> use_;
  const char* inputs_ = nullptr;
  char* landed_ = nullptr;  // the outputs
  Copies copies_;
};

base::StatusOr<ProgramSlot::Loaded> RowProgram::Load(
    int64_t rows, std::shared_ptr<const Executable> executable) const {
  if (executable->output_count() != 1) {
    return base::Internal("an executable has " + std::to_string(executable->output_count()) +
                          " outputs in place of one block");
  }
  const auto bytes = executable->temporary_bytes() +
                     static_cast<int64_t>(Place(input_bytes_, rows).bytes) +
                     static_cast<int64_t>(Place(output_bytes_, rows).bytes);
  return ProgramSlot::Loaded{{}, std::move(executable), bytes};
}

base::Status RowProgram::AddSize(int64_t rows, std::shared_ptr<const Executable> executable) {
  auto loaded = Load(rows, std::move(executable));
  if (!loaded.ok()) return loaded.status();
  PackedTensors inputs = Place(input_bytes_, rows);
  PackedTensors outputs = Place(output_bytes_, rows);
  auto staging = parameters_->accelerator()->staging().Get(parameters_->model(),
                                                           OutputsBegin(inputs) + outputs.bytes);
  programs_.insert_or_assign(
      rows,
      Program{std::make_unique<ProgramSlot>(std::move(loaded.value())), std::move(inputs),
              std::move(outputs), std::make_unique<std::atomic<int64_t>>(0), std::move(staging)});
  counts_.AddSize(rows);
  return {};
}

base::Status RowProgram::Offer(int64_t rows, std::shared_ptr<const Executable> executable) {
  const int64_t code_bytes = executable->code_bytes();
  auto loaded = Load(rows, std::move(executable));
  if (!loaded.ok()) return loaded.status();
  auto charge = parameters_->accelerator()->memory().ChargeProgram(parameters_->model(), code_bytes,
                                                                   loaded.value().run_bytes);
  if (!charge.ok()) return charge.status();
  loaded.value().charge.emplace(std::move(charge.value()));
  programs_.at(rows).slot->Offer(std::move(loaded.value()));
  return {};
}

std::vector<int64_t> RowProgram::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& [rows, program] : programs_) sizes.push_back(rows);
  return sizes;
}

int64_t RowProgram::run_bytes_max() const {
  int64_t bytes = 0;
  for (const auto& [rows, program] : programs_) bytes = std::max(bytes, program.slot->run_bytes());
  return bytes;
}

base::Status RowProgram::Run(const ParameterCopy& copy, int64_t rows,
                             const std::vector<const char*>& inputs,
                             const std::vector<char*>& outputs, int64_t deadline_ns,
                             int64_t* wait_ns) const {
  std::vector<const char*> from = inputs;
  std::vector<char*> to = outputs;
  const int64_t tried_rows = TunedTrial::rows();
  if (tried_rows != TunedTrial::kNone && !MayTry(rows, tried_rows)) {
    return base::NotFound("no program of " + std::to_string(tried_rows) +
                          " rows is offered for the request");
  }
  while (rows > 0) {
    const bool is_trial = tried_rows != TunedTrial::kNone;
    const int64_t most = is_trial ? tried_rows : PieceRows();
    const int64_t taken = needs_exact_rows_ ? rows : std::min(rows, most);
    const auto& [size, program] = *programs_.lower_bound(is_trial ? tried_rows : taken);
    MILLPOND_RETURN_IF_ERROR(RunPiece(copy, size, program, taken, from, to, deadline_ns, wait_ns));
    for (size_t i = 0; i < from.size(); ++i) from[i] += taken * input_bytes_[i];
    for (size_t i = 0; i < to.size(); ++i) to[i] += taken * output_bytes_[i];
    rows -= taken;
  }
  return {};
}

bool RowProgram::MayTry(int64_t rows, int64_t tried_rows) const {
  return programs_.count(tried_rows) > 0 && (!needs_exact_rows_ || rows == tried_rows);
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
  if (accelerator.is_lost()) return accelerator.LostStatus();
  const int64_t cost_ns = program.cost_ns->load(std::memory_order_relaxed);
  const bool is_trial = TunedTrial::rows() != TunedTrial::kNone;
  const ProgramSlot::Use use = program.slot->Begin(is_trial);
  if (!use) return base::NotFound("no program of " + std::to_string(size) + " rows is offered");
  std::optional<DeviceTurns::Turn> turn;  // outlives the run's copies and buffers
  OneRun run(*this, program, use.executable(), copy, rows, size, inputs,
             DeviceSchedule::IsLong(cost_ns));
  if (!run.has_memory()) {
    return {base::Code::kResourceExhausted, "no memory is left for the inputs of a run"};
  }
  const int64_t came_ns = base::MonotonicNs();
  auto taken =
      accelerator.turns().Take(parameters_->model(), parameters_->is_low(), cost_ns, deadline_ns);
  if (!taken.ok()) return taken.status();
  turn.emplace(std::move(taken.value()));
  const int64_t wait_ns = base::MonotonicNs() - came_ns;
  if (all_wait_ns != nullptr) *all_wait_ns += wait_ns;
  if (accelerator.is_lost()) return accelerator.LostStatus();  // while it waited
  auto charge = accelerator.memory().ChargeRun(parameters_->model(), use.run_bytes());
  if (!charge) {
    return {base::Code::kResourceExhausted, "the accelerator has no memory left for a run"};
  }
  MILLPOND_RETURN_IF_ERROR(counts_.BeginRun()
                               ? run.RunTimed(outputs, &*turn, std::move(charge), wait_ns, &counts_)
                               : run.Run(outputs, &*turn, std::move(charge)));
  accelerator.NoteSuccess();
  accelerator.pace().NoteRun();
  const int64_t took_ns = run.EndTurn();
  // If two runs end at once, one of them may be left out.
  program.cost_ns->store(cost_ns == 0 ? took_ns : cost_ns + (took_ns - cost_ns) / kCostRuns,
                         std::memory_order_relaxed);
  counts_.CountRun(size, rows);
  if (is_trial) use.NotePassed();
  return {};
}

}  // namespace millpond::pjrt
