#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/servable/prepared_run.h"
#include "native/servable/request_reservoir.h"
#include "native/tensor/output_set.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::inference {

// The runs of one request that its model's reservoir should take, kept from the run until the reply
// is written. A run keeps the names that a PredictRequest would carry, and the inputs, which it
// shares with the run.
//
// Thread: the request's. It outlives the request's handle, so it holds nothing that belongs to the
// version.
class RunSamples {
 public:
  // Keeps a run that has succeeded if the reservoir should take it; null: there is none. A run of
  // several signatures gives several samples. For methods whose requests are not PredictRequests,
  // so that a model is warm after a swap whichever protocol its clients use. `received_ns` is the
  // time at which the request arrived.
  //
  // SessionRun leaves no sample. Its request names tensors and nodes of one version's graph, which
  // another version need not have. Its targets run for their side effects. A PredictRequest, and so
  // a record of a warm-up file, cannot express either.
  //
  // Cost: that of EncodedPredictRequestBytes and RequestReservoir::Wants, without an allocation. If
  // the run is wanted, also a copy of the names and a reference to each input.
  void Keep(const servable::PreparedRun& run,
            const std::shared_ptr<servable::RequestReservoir>& reservoir, int64_t received_ns);
  // Gives each run to the reservoir, as the PredictRequest that runs the same. Call it only after a
  // reply that is OK, because another version must not repeat a failed request, and once the reply
  // is written. Cost: nothing without runs, otherwise two copies of the inputs.
  void Give(int64_t now_ns);

 private:
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

}  // namespace millpond::inference
