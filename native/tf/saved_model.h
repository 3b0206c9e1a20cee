#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tf/load_control.h"
#include "native/tf/output_set.h"
#include "native/tf/run_context.h"
#include "native/tf/session_callables.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::memory {
class MemoryResource;
}  // namespace millpond::memory

namespace millpond::tf {

class JointRunner;

// A SavedModel from a directory: loaded in steps, so that each can be timed and cancelled between,
// then run by any number of threads at once.
//
// The steps are called once each, in the order written here, on one thread (FAILED_PRECONDITION
// out of order). Restore and init run on that thread alone, whose priority is the loader's, and end
// CANCELLED at the next kernel, restore within a tensor, once control() says so. Freeing it closes
// the session and frees the parameters on the calling thread.
class SavedModel {
 public:
  SavedModel(std::string directory, std::vector<std::string> tags);
  ~SavedModel();
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  // NOT_FOUND: no meta graph has exactly these tags. DATA_LOSS: the file does not parse.
  base::Status ReadGraph();
  // Refuses requests whose inputs have other shapes than their signatures name. After ReadGraph.
  base::Status CheckInputShapes();
  // The bytes that the parameters and the constants of the graph will take, block by block.
  // DATA_LOSS: variables.index does not parse. After ReadGraph, before CreateSession.
  base::StatusOr<std::vector<size_t>> ParameterBytes() const;
  // Variables and constants come from `parameters`, which outlives this, and not from the request
  // memory. After ReadGraph, before CreateSession.
  base::Status SetParameterMemory(memory::MemoryResource* parameters);
  // What frees the tensors of that memory. It must outlive the last of them, which is this object's
  // unless one has leaked. Null without SetParameterMemory.
  std::shared_ptr<void> parameter_allocator() const;
  base::Status CreateSession();
  // DATA_LOSS: a checksum differs. OUT_OF_RANGE: a shard is cut short.
  base::Status Restore();
  // Runs the init op: tables, assets.
  base::Status RunInit();
  // Returns the variables, by name, that requests read and that neither Restore nor RunInit has
  // given a value. After RunInit, before MakeCallables.
  std::vector<std::string> VariablesWithoutValue() const;
  // One callable a signature. Fails where serving_default, or every signature, cannot be run; of
  // another one Run says why.
  base::Status MakeCallables();
  // From here on what kernels allocate comes from the request memory: before the first request.
  // What Prepare makes before, constants of the graph among it, lies with the parameters.
  void EndLoading();

  bool IsReady() const;
  // What any thread may tell a load that is under way.
  const std::shared_ptr<LoadControl>& control() const;
  // The ops of the graph that no library in this process has: with any, CreateSession fails.
  // Sorted. From ReadGraph on.
  const std::vector<std::string>& missing_ops() const;
  // Whether a request could change what a variable holds. On doubt it could. From ReadGraph on.
  bool MayWriteVariables() const;
  // Whether nothing that a request runs is known to write to the parameters' memory. On doubt it is
  // not so, nor where a SessionRun may run anything. From ReadGraph on.
  bool CanBeSealed() const;
  const SignatureMap& signatures() const;
  // A serialized tensorflow.serving.SignatureDefMap.
  const std::string& signature_def_map() const;

  // Makes what a run for `outputs` of one of signatures() uses. See SignatureRunner.
  base::Status Prepare(const Signature& signature, const OutputSet& outputs) const;
  // Computes `outputs` of one of signatures(), in their order, on the calling thread. `inputs`
  // are in the order of the signature's inputs. DEADLINE_EXCEEDED and CANCELLED as `run` says,
  // else what the graph's kernels say.
  base::Status Run(const Signature& signature, const OutputSet& outputs, const RunContext& run,
                   const TensorList& inputs, TensorList* result) const;
  // Returns what runs `signatures`, which are of signatures(), in one run of the session. Null:
  // they have to run one after the other for now (JointRunners::FindOrMake). Valid as long as this
  // is.
  const JointRunner* FindOrMakeJoint(const std::vector<const Signature*>& signatures) const;
  // Runs all outputs of each of `signatures`, for which FindOrMakeJoint returned `joint`, under the
  // rules of Run. Each one's input is tensor 0 of `inputs`. `results` gets one list for each.
  base::Status RunJoint(const JointRunner& joint, const std::vector<const Signature*>& signatures,
                        const RunContext& run, const TensorList& inputs,
                        std::vector<TensorList>* results) const;
  // Runs the part of the graph that `names` says, as SessionCallables has it, under the same rules.
  // UNIMPLEMENTED where RuntimeOptions::serves_session_run is false.
  base::Status RunSession(const SessionRunNames& names, const RunContext& run,
                          const TensorList& fed, TensorList* fetched) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millpond::tf
