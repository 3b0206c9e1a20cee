#include "native/servable/prepared_run.h"

#include "native/base/clock.h"

namespace millpond::servable {

base::Status Compute(const Servable& servable, const PreparedRun& run,
                     const tensor::RunContext& context, const tensor::TensorList& inputs,
                     std::vector<tensor::TensorList>* results) {
  results->resize(run.signatures.size());
  if (run.outputs) {
    return servable.Run(*run.signatures.front(), *run.outputs, context, inputs, &results->front());
  }
  if (const auto together = servable.RunTogether(run.signatures, context, inputs, results)) {
    return *together;
  }
  for (size_t i = 0; i < run.signatures.size(); ++i) {
    const auto all = tensor::OutputSet::All(run.signatures[i]->outputs.size());
    MILLPOND_RETURN_IF_ERROR(
        servable.Run(*run.signatures[i], all, context, inputs, &(*results)[i]));
  }
  return {};
}

void RunAlone(PreparedRun* run) {
  run->Enter(metrics::Phase::kRun, base::MonotonicNs());
  run->status = Compute(*run->servable, *run, run->context, run->inputs, &run->results);
}

}  // namespace millpond::servable
