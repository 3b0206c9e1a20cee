#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/servable.h"
#include "native/tensor/output_set.h"
#include "native/tensor/run_context.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// The runs of one request that its model's reservoir should take, kept from the run until the reply
// is on its way. A run keeps the names that a PredictRequest would carry, and the inputs, which it
// shares with the run.
//
// Thread: the request's. It outlives the request's handle, so it holds nothing that belongs to the
// version.
class RunSamples {
 public:
  // Gives each run to the reservoir, as the PredictRequest that runs the same. Call it only after a
  // reply that is OK, because another version must not repeat a failed request. Cost: nothing
  // without runs, otherwise two copies of the inputs.
  void Give(int64_t now_ns);

 private:
  friend class SampledServable;

  struct Run {
    servable::RequestKind kind;
    tensor::Signature signature;  // only its names
    tensor::OutputSet outputs;
    tensor::TensorList inputs;
  };

  std::shared_ptr<servable::RequestReservoir> reservoir_;
  std::string model_name_;
  std::vector<Run> runs_;
};

// A version whose runs are sampled. It wraps the servable for methods whose requests are not
// PredictRequests, so that a model is warm after a swap whichever protocol its clients use. A
// request that runs several signatures gives several samples. The methods run on it as on any
// servable.
//
// SessionRun leaves no sample. Its request names tensors and nodes of one version's graph, which
// another version need not have. Its targets run for their side effects. A PredictRequest, and so a
// record of a warm-up file, cannot express either.
//
// Thread: the request's. Cost of a run: that of EncodedPredictRequestBytes and
// RequestReservoir::Wants, without an allocation. If the run is wanted, also a copy of the names
// and a reference to each input.
class SampledServable final : public servable::Servable {
 public:
  // Borrows all; `reservoir` may be null. `received_ns` is the time at which the request arrived.
  // `samples` gets the runs that the reservoir wants.
  SampledServable(const servable::Servable& servable,
                  const std::shared_ptr<servable::RequestReservoir>& reservoir, int64_t received_ns,
                  RunSamples* samples)
      : servable_(servable), reservoir_(reservoir), received_ns_(received_ns), samples_(samples) {}

  const servable::ServableId& id() const override { return servable_.id(); }
  const tensor::SignatureMap& signatures() const override { return servable_.signatures(); }
  const std::string& signature_def_map() const override { return servable_.signature_def_map(); }
  base::Status Prepare(const tensor::Signature& signature,
                       const tensor::OutputSet& outputs) const override {
    return servable_.Prepare(signature, outputs);
  }
  base::Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                   const tensor::RunContext& run, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override;
  std::optional<base::Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                          const tensor::RunContext& run,
                                          const tensor::TensorList& inputs,
                                          std::vector<tensor::TensorList>* results) const override;
  // Session runs are not sampled.
  const servable::Session* session() const override { return servable_.session(); }

 private:
  // Keeps the inputs of a successful run if the reservoir should take it.
  void Sample(const tensor::Signature& signature, const tensor::OutputSet& outputs,
              const tensor::TensorList& inputs) const;

  const servable::Servable& servable_;
  const std::shared_ptr<servable::RequestReservoir>& reservoir_;
  const int64_t received_ns_;
  RunSamples* const samples_;
};

}  // namespace millpond::inference
