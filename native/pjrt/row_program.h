#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/executable.h"
#include "native/pjrt/packed_tensors.h"
#include "native/pjrt/program_slot.h"
#include "native/pjrt/run_figures.h"
#include "native/pjrt/staging.h"

namespace millpond::pjrt {

// A function of rows that is compiled for some numbers of rows: its sizes. Each input and output
// has the rows as its first dimension, and a row of an output depends on the same row of the inputs
// alone. So a run of fewer rows is filled up to the next size, and a run of more rows than the
// largest size takes several runs of the accelerator. So does a run that is too long for other
// models that use the accelerator now (PieceChoice).
//
// Thread: any number at once, once all sizes are added.
class RowProgram {
 public:
  // Takes memory of this process that is counted for the run on the calling thread. Null if the run
  // may have no more.
  using TakeMemory = std::function<std::shared_ptr<char>(size_t bytes)>;

  // The bytes of a row of each input and of each output. `parameters` are the executables'
  // arguments after the inputs. If it `needs_exact_rows`, a row may depend on others, so each Run
  // is of the rows of a program, and is never cut. A run for which no staging buffer is free takes
  // its blocks by `take_memory`; without it, it has no memory.
  RowProgram(std::shared_ptr<DeviceParameters> parameters, std::vector<size_t> parameter_indices,
             std::vector<size_t> input_bytes, std::vector<size_t> output_bytes,
             bool needs_exact_rows = false, TakeMemory take_memory = nullptr)
      : parameters_(std::move(parameters)),
        parameter_indices_(std::move(parameter_indices)),
        input_bytes_(std::move(input_bytes)),
        output_bytes_(std::move(output_bytes)),
        needs_exact_rows_(needs_exact_rows),
        take_memory_(std::move(take_memory)) {}

  // Adds the executable for runs of `rows` rows. It takes the inputs in one block, and returns the
  // outputs in another (PackedTensors). Returns INTERNAL if it has several outputs.
  base::Status AddSize(int64_t rows, std::shared_ptr<const Executable> executable);

  // Offers another executable for runs of `rows` rows, one of sizes(), to trials (TunedTrial).
  // Charges its memory, so that runs of both find theirs. Returns RESOURCE_EXHAUSTED without memory
  // for it, and the errors of AddSize. Offer, UseOffered and WithdrawOffered: one thread at a time,
  // beside runs.
  base::Status Offer(int64_t rows, std::shared_ptr<const Executable> executable);
  // Says whether an executable is offered for `rows` rows, and a trial of it has ended well.
  bool HasPassed(int64_t rows) const {
    const auto program = programs_.find(rows);
    return program != programs_.end() && program->second.slot->HasPassed();
  }
  // Makes later runs use the offered executable of that size. Waits for the runs under way of the
  // one before, and frees it. Returns false, and changes nothing, unless HasPassed.
  bool UseOffered(int64_t rows) const { return programs_.at(rows).slot->Replace(); }
  // Says whether UseOffered has done so.
  bool HasReplaced(int64_t rows) const { return programs_.at(rows).slot->HasReplaced(); }
  // Frees what is offered for that size.
  void WithdrawOffered(int64_t rows) const { programs_.at(rows).slot->Withdraw(); }

  // Notes that the accelerator is taken for gone, as far as these runs go. Returns true if it was
  // not before.
  bool CountAsLost() const { return !is_lost_.exchange(true); }
  bool is_lost() const { return is_lost_.load(std::memory_order_relaxed); }

  // Computes `rows` rows, 1 or more, with `copy` of parameters(). `inputs` and `outputs` are the
  // elements of the first row of each; all rows of a tensor follow it. Waits for the model's turn.
  // Returns DEADLINE_EXCEEDED if that cannot come early enough, ABORTED if other runs came first
  // for too long, RESOURCE_EXHAUSTED if the run would take more memory than its model may have now
  // or than this process has left for it, and the accelerator's error; `outputs` are undefined
  // then. Returns NOT_FOUND if this thread tries a program that was not offered, or that the rows
  // do not fill although they must. Adds the time of the wait to `*wait_ns` unless it is null.
  base::Status Run(const ParameterCopy& copy, int64_t rows, const std::vector<const char*>& inputs,
                   const std::vector<char*>& outputs,
                   int64_t deadline_ns = DeviceTurns::kNoDeadline,
                   int64_t* wait_ns = nullptr) const;

  DeviceParameters& parameters() const { return *parameters_; }
  std::vector<int64_t> sizes() const;
  // Says whether Run takes so many rows.
  bool MayRun(int64_t rows) const {
    return rows > 0 && (!needs_exact_rows_ || programs_.count(rows) > 0);
  }
  // The memory of the accelerator that the largest run takes: inputs, outputs and temporary memory.
  int64_t run_bytes_max() const;
  // The counts of the runs, for what runs the signature elsewhere, too.
  RunCounts& counts() const { return counts_; }

 private:
  class OneRun;
  struct RunUse;

  struct Program {
    std::unique_ptr<ProgramSlot> slot;
    PackedTensors inputs;
    PackedTensors outputs;
    // The time of the accelerator that a run takes, learned from the runs; 0 before the first.
    std::unique_ptr<std::atomic<int64_t>> cost_ns;
    // For the blocks of a run, the outputs' after the inputs'. The model's versions share it.
    std::shared_ptr<StagingPool> staging;
  };

  base::StatusOr<ProgramSlot::Loaded> Load(int64_t rows,
                                           std::shared_ptr<const Executable> executable) const;
  int64_t PieceRows() const;
  bool MayTry(int64_t rows, int64_t tried_rows) const;
  base::Status RunPiece(const ParameterCopy& copy, int64_t size, const Program& program,
                        int64_t rows, const std::vector<const char*>& inputs,
                        const std::vector<char*>& outputs, int64_t deadline_ns,
                        int64_t* wait_ns) const;

  const std::shared_ptr<DeviceParameters> parameters_;
  const std::vector<size_t> parameter_indices_;
  const std::vector<size_t> input_bytes_;
  const std::vector<size_t> output_bytes_;
  const bool needs_exact_rows_;
  const TakeMemory take_memory_;
  std::map<int64_t, Program> programs_;
  mutable RunCounts counts_;
  mutable std::atomic<bool> is_lost_{false};
};

}  // namespace millpond::pjrt
