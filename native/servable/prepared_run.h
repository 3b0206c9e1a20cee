#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/metrics/request_recorder.h"
#include "native/servable/servable.h"
#include "native/tensor/output_set.h"
#include "native/tensor/run_context.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::servable {

// The run of one request, between its decoding and the encoding of its reply. It is computed by
// itself (RunAlone), or together with others (Batch).
//
// Thread: one at a time. Owner: its request, which pins `servable` meanwhile.
struct PreparedRun {
  // Enters `phase` if the run is timed.
  void Enter(metrics::Phase phase, int64_t now_ns) const {
    if (watch != nullptr) watch->Enter(phase, now_ns);
  }
  // True if both do the same computation, each on its own inputs.
  bool DoesTheSame(const PreparedRun& other) const {
    return servable == other.servable && signatures == other.signatures &&
           outputs.has_value() == other.outputs.has_value() &&
           (!outputs || *outputs == *other.outputs);
  }

  const Servable* servable = nullptr;
  std::vector<const tensor::Signature*> signatures;
  // The outputs of the only signature. If it is empty, all outputs of all `signatures` are computed
  // in one run.
  std::optional<tensor::OutputSet> outputs;
  tensor::TensorList inputs;
  tensor::RunContext context;
  metrics::PhaseWatch* watch = nullptr;  // of its request; null: the run is not timed

  // Set by the run.
  base::Status status;
  base::ByteBudget::Share copies;           // of results that were copied for this request only
  std::vector<tensor::TensorList> results;  // one for each signature
};

// Computes what `run` asks for from `inputs`, which may be other rows than its own. Several
// signatures run one after the other if the servable cannot run them together for now.
base::Status Compute(const Servable& servable, const PreparedRun& run,
                     const tensor::RunContext& context, const tensor::TensorList& inputs,
                     std::vector<tensor::TensorList>* results);

// Runs `run` by itself, in Phase::kRun, and sets its status and results.
void RunAlone(PreparedRun* run);

}  // namespace millpond::servable
