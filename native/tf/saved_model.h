#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/servable/session.h"
#include "native/tensor/output_set.h"
#include "native/tensor/row_verdict.h"
#include "native/tensor/run_context.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"
#include "native/tf/accelerated_runner.h"
#include "native/tf/load_control.h"
#include "native/tf/missing_kernels.h"

namespace millpond::memory {
class MemoryResource;
}  // namespace millpond::memory

namespace millpond::tf {

class JointRunner;
class LoadedTables;

// A SavedModel from a directory. It is loaded in steps, so that each step can be timed and the load
// can be cancelled between them. Then any number of threads may run it at the same time.
//
// The steps are called once each, in the order below, on one thread (FAILED_PRECONDITION out of
// order). Restore and init run on that thread alone, at the loader's priority. If control() cancels
// the load, they end with CANCELLED at the next kernel, and restore also within a tensor. The
// destructor closes the session and frees the parameters on the calling thread.
class SavedModel {
 public:
  SavedModel(std::string directory, std::vector<std::string> tags);
  ~SavedModel();
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  // Reads the graph and the signatures. Returns NOT_FOUND if no meta graph has exactly these tags,
  // and DATA_LOSS if the file does not parse.
  base::Status ReadGraph();
  // Makes each signature refuse requests whose inputs do not have the shapes that it names. After
  // ReadGraph.
  base::Status CheckInputShapes();
  // Returns the sizes of the parameters and of the graph's constants in bytes, one number a block.
  // Returns DATA_LOSS if variables.index does not parse. After ReadGraph, before CreateSession.
  base::StatusOr<std::vector<size_t>> ParameterBytes() const;
  // Finds the large variables that may be kept from version to version. ParameterBytes leaves them
  // out from now on, and they lie in memory of their own once tables() has claimed it. Returns
  // DATA_LOSS if variables.index does not parse. After ReadGraph, before CreateSession.
  base::Status PlanTables();
  // Null without PlanTables.
  const std::shared_ptr<LoadedTables>& tables() const;
  // Places variables and constants in `parameters`, which outlives this object, and not in the
  // request memory. After ReadGraph, before CreateSession.
  base::Status SetParameterMemory(memory::MemoryResource* parameters);
  // Returns the object that frees the tensors of that memory. It must outlive the last of these
  // tensors, which this object holds unless one has leaked. Returns null without
  // SetParameterMemory.
  std::shared_ptr<void> parameter_allocator() const;
  // Compiles the programs of the signatures into `cache` (tf::CompileAhead). Returns UNIMPLEMENTED
  // if requests may write to variables. After ReadGraph, before CreateSession.
  base::StatusOr<std::vector<AcceleratedSignature>> CompileAhead(
      const DraftRules& rules, const pjrt::AheadCompiler* compiler,
      const pjrt::ExecutableCache& cache) const;
  base::Status CreateSession();
  // Reads the variables. Returns DATA_LOSS if a checksum differs, and OUT_OF_RANGE if a shard is
  // cut short.
  base::Status Restore();
  // Runs the init op, which fills tables and reads assets.
  base::Status RunInit();
  // Returns the names of the variables that requests read, and that neither Restore nor RunInit has
  // given a value. After RunInit, before MakeCallables.
  std::vector<std::string> VariablesWithoutValue() const;
  // Finds out what the graph shows about the rows of each signature's outputs, for row_verdicts().
  // After RunInit, before MakeCallables, and may be left out.
  base::Status AnalyzeRows();
  // Returns the names of the tables that requests look keys up in, and that neither Restore nor
  // RunInit has filled. After RunInit, before MakeCallables.
  std::vector<std::string> TablesWithoutValue() const;
  // Translates the signatures that can run on an accelerator. Returns UNIMPLEMENTED if requests may
  // write to variables. After AnalyzeRows, before MakeCallables, and may be left out.
  base::Status DraftPrograms(AcceleratorUse use);
  // Lists the programs that are drafted. Whoever compiles the missing ones into the cache of the
  // use saves UseAccelerator the work. Empty before DraftPrograms and after UseAccelerator.
  ProgramList ListPrograms() const;
  // Compiles what was drafted, and copies the variables to the accelerators, for
  // signatures_on_accelerator(). After DraftPrograms, before MakeCallables. Returns
  // RESOURCE_EXHAUSTED if the variables do not fit there, and the errors of the plugin.
  base::Status UseAccelerator();
  // Makes a callable for each signature. Fails if serving_default cannot be run, or if no signature
  // can. If another signature cannot be run, Run returns the reason.
  base::Status MakeCallables();
  // Makes kernels allocate from the request memory from now on. To be called before the first
  // request. What MakeCallable made before lies with the parameters, including constants of the
  // graph.
  void EndLoading();

  // From now on keeps the values that variables had before runs write to them, for PutBackState, up
  // to `bytes_max` together. So runs that must not write may write what can be put back
  // (WriteWatch). Nothing may run during these two calls; for the warm-up of a version that is not
  // served yet.
  void KeepState(size_t bytes_max);
  // Returns the bytes of the variables that were written since then. They take memory twice.
  size_t KeptStateBytes() const;
  // Puts the values back, and returns the number of variables. If a run that may write has written
  // anything else, all stays as the runs left it.
  size_t PutBackState();

  bool IsReady() const;
  // The control by which any thread may cancel, pace and watch a running load.
  const std::shared_ptr<LoadControl>& control() const;
  // The ops of the graph that no library in this process registers, sorted. If there are any,
  // CreateSession fails. From ReadGraph on.
  const std::vector<std::string>& missing_ops() const;
  // Returns the nodes for which the CPU has no kernel. After ReadGraph, before CreateSession.
  base::StatusOr<std::vector<MissingKernel>> MissingKernels() const;
  // True if a request could write to a variable. In doubt it is true. From ReadGraph on.
  bool MayWriteVariables() const;
  // True if a request's writes could change the answer to a later request, so that requests must
  // not be repeated. For a model that assigns variables it becomes true with the first run that
  // assigns another value than the variable has (WriteWatch). From ReadGraph on; any thread.
  bool MayChangeAnswers() const;
  // True if a part of the model is compiled in the first run of each shape. From ReadGraph on.
  bool CompilesEachShape() const;
  // True if nothing that a request runs is known to write to the parameters' memory. False in
  // doubt, and if a SessionRun may run any part of the graph. From ReadGraph on.
  bool CanBeSealed() const;
  // The verdicts of AnalyzeRows (row_analysis.h); empty without it.
  const tensor::RowVerdicts& row_verdicts() const;
  // Says for each signature if it runs on the accelerator, and why not; empty without
  // UseAccelerator.
  std::vector<AcceleratedSignature> signatures_on_accelerator() const;
  // The programs that UseAccelerator has compiled itself.
  int64_t compiled_program_count() const;
  // The bytes that the parameters take in each accelerator's memory, if they are there; 0 without
  // one.
  int64_t accelerator_bytes() const;
  // The uploads of the parameters to each accelerator, and the bytes that are there now.
  std::vector<pjrt::UploadFigures> accelerator_uploads() const;
  // The runs of each signature that has programs, on each accelerator.
  std::vector<pjrt::RunFigures> accelerator_runs() const;
  // Measures the CPU and the accelerator on each size of each signature that has the choice
  // (side_measurement.h), for `ns_max` a signature at most. Returns CANCELLED once `is_cancelled`.
  // No request may run meanwhile. After MakeCallables.
  base::Status MeasureSides(int64_t ns_max, const std::atomic<bool>& is_cancelled) const;
  // Chooses the side of runs of up to `rows` rows (SideTimes::Choose). Returns NOT_FOUND if the
  // signature has no choice for that size.
  base::Status ChooseSide(const std::string& signature, int64_t rows, pjrt::Side side,
                          int64_t probe_one_of) const;
  // The programs that run without autotuning, and their replacement (AcceleratedPrograms).
  std::vector<std::string> UntunedPrograms(const std::string& cache_directory) const;
  OfferedPrograms OfferTunedPrograms(const std::string& cache_directory) const;
  int64_t UseTunedPrograms(int64_t rows) const;
  void WithdrawTunedPrograms() const;
  const tensor::SignatureMap& signatures() const;
  // A serialized tensorflow.serving.SignatureDefMap.
  const std::string& signature_def_map() const;

  // Makes a callable for `outputs` of one of signatures(). See SignatureRunner.
  base::Status MakeCallable(const tensor::Signature& signature,
                            const tensor::OutputSet& outputs) const;
  // Computes `outputs` of one of signatures(), in their order, on the calling thread. `inputs` are
  // in the order of the signature's inputs. Returns DEADLINE_EXCEEDED or CANCELLED if `run` ends
  // it, and the error of the graph's kernels if they fail.
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const;
  // Returns the runner that runs `signatures`, which are some of signatures(), in one run of the
  // session. Valid as long as this object. Returns null if they must run one after the other for
  // now (JointRunners::FindOrMake).
  const JointRunner* FindOrMakeJoint(const std::vector<const tensor::Signature*>& signatures) const;
  // Runs all outputs of each of `signatures`, for which FindOrMakeJoint returned `joint`, under the
  // rules of Run. The input of each signature is tensor 0 of `inputs`. `results` gets one list for
  // each signature.
  base::Status RunJoint(const JointRunner& joint,
                        const std::vector<const tensor::Signature*>& signatures,
                        const tensor::RunContext& run, const tensor::TensorList& inputs,
                        std::vector<tensor::TensorList>* results) const;
  // Runs the part of the graph that `names` selects, by SessionCallables, under the rules of Run.
  // Returns UNIMPLEMENTED if RuntimeOptions::serves_session_run is false.
  base::Status RunSession(const servable::SessionRunNames& names, const tensor::RunContext& run,
                          const tensor::TensorList& fed, tensor::TensorList* fetched) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millpond::tf
