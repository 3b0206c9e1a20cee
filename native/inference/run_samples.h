#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/servable.h"
#include "native/tf/output_set.h"
#include "native/tf/run_context.h"
#include "native/tf/session_callables.h"
#include "native/tf/signature.h"
#include "native/tf/tensor_list.h"

namespace millpond::inference {

// What one request ran that its model's reservoir wants, from the run until the reply is on its
// way: the names that a PredictRequest says, and the inputs, which are shared with the run.
//
// Thread: the request's. It outlives the request's handle, and nothing in it is the version's.
class RunSamples {
 public:
  // Gives each run to the reservoir, as the PredictRequest that runs the same. After a reply that
  // is OK; a request that fails is not for another version to repeat. Cost: nothing where there are
  // none, else two copies of the inputs.
  void Give(int64_t now_ns);

 private:
  friend class SampledServable;

  struct Run {
    servable::RequestKind kind;
    tf::Signature signature;  // its names
    tf::OutputSet outputs;
    tf::TensorList inputs;
  };

  std::shared_ptr<servable::RequestReservoir> reservoir_;
  std::string model_name_;
  std::vector<Run> runs_;
};

// One version, with a look at what a request runs on it: for the methods whose requests are no
// PredictRequests, so that a model is warm after a swap whatever its clients speak. A request that
// runs several signatures is several samples. The methods themselves know nothing of it.
//
// SessionRun leaves no sample: it names tensors and nodes of one version's graph, which another
// version need not have, and targets that are run for what they change; no PredictRequest, and so
// no record of a warm-up file, says the same.
//
// Thread: the request's. Cost of a run: what EncodedPredictRequestBytes and
// RequestReservoir::Wants cost, no allocation; where it is wanted a copy of the names and a
// reference to each input.
class SampledServable final : public servable::Servable {
 public:
  // Borrows all; `reservoir` may be null. `received_ns`: when the request came. `samples` gets what
  // is wanted.
  SampledServable(const servable::Servable& servable,
                  const std::shared_ptr<servable::RequestReservoir>& reservoir, int64_t received_ns,
                  RunSamples* samples)
      : servable_(servable), reservoir_(reservoir), received_ns_(received_ns), samples_(samples) {}

  const servable::ServableId& id() const override { return servable_.id(); }
  const tf::SignatureMap& signatures() const override { return servable_.signatures(); }
  const std::string& signature_def_map() const override { return servable_.signature_def_map(); }
  base::Status Prepare(const tf::Signature& signature,
                       const tf::OutputSet& outputs) const override {
    return servable_.Prepare(signature, outputs);
  }
  base::Status Run(const tf::Signature& signature, const tf::OutputSet& outputs,
                   const tf::RunContext& run, const tf::TensorList& inputs,
                   tf::TensorList* result) const override;
  std::optional<base::Status> RunTogether(const std::vector<const tf::Signature*>& signatures,
                                          const tf::RunContext& run, const tf::TensorList& inputs,
                                          std::vector<tf::TensorList>* results) const override;
  base::Status RunSession(const tf::SessionRunNames& names, const tf::RunContext& run,
                          const tf::TensorList& fed, tf::TensorList* fetched) const override {
    return servable_.RunSession(names, run, fed, fetched);
  }

 private:
  // Keeps the inputs of a run that succeeded, if the reservoir wants them.
  void Sample(const tf::Signature& signature, const tf::OutputSet& outputs,
              const tf::TensorList& inputs) const;

  const servable::Servable& servable_;
  const std::shared_ptr<servable::RequestReservoir>& reservoir_;
  const int64_t received_ns_;
  RunSamples* const samples_;
};

}  // namespace millpond::inference
