#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tf/run_context.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::tf {

// A SavedModel from a directory: loaded in steps, so that each can be timed and cancelled between,
// then run by any number of threads at once.
//
// The steps are called once each, in the order written here, on one thread (FAILED_PRECONDITION
// out of order). Restore and init run on that thread alone, whose priority is the loader's; only
// the stock restore kernel reads large tensors on a pool of its own. Freeing it closes the session
// and frees the parameters on the calling thread.
class SavedModel {
 public:
  SavedModel(std::string directory, std::vector<std::string> tags);
  ~SavedModel();
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  // NOT_FOUND: no meta graph has exactly these tags. DATA_LOSS: the file does not parse.
  base::Status ReadGraph();
  base::Status CreateSession();
  // DATA_LOSS: a checksum differs. OUT_OF_RANGE: a shard is cut short.
  base::Status Restore();
  // Runs the init op: tables, assets.
  base::Status RunInit();
  // One callable a signature. Fails where serving_default, or every signature, cannot be run; of
  // another one Run says why.
  base::Status MakeCallables();

  bool IsReady() const;
  const SignatureMap& signatures() const;
  // A serialized tensorflow.serving.SignatureDefMap.
  const std::string& signature_def_map() const;

  // Computes all outputs of one of signatures(), in their order, on the calling thread. `inputs`
  // are in the order of the signature's inputs. DEADLINE_EXCEEDED and CANCELLED as `run` says,
  // else what the graph's kernels say.
  base::Status Run(const Signature& signature, const RunContext& run, const TensorList& inputs,
                   TensorList* outputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millpond::tf
