// Measures the cost of the reservoir for a request that is not a PredictRequest: if its run is not
// wanted, as is usual, and if it is kept. Uses the inputs of the CTR model, and strings.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "native/base/clock.h"
#include "native/bench/idle_servable.h"
#include "native/bench/measure.h"
#include "native/inference/run_samples.h"
#include "native/tensor/tensor_access.h"

namespace millpond::bench {
namespace {

using servable::RequestReservoir;

// The time between two requests: longer than the reservoir ever waits between two samples.
constexpr int64_t kLaterNs = 100'000'000;

void MeasureRequests(int64_t row_count, bool has_words) {
  const IdleServable servable(has_words ? 3 : 2);
  const auto all = tensor::OutputSet::All(2);
  tensor::TensorList inputs;
  MakeInputs(row_count, has_words, &inputs);
  const auto reservoir = std::make_shared<RequestReservoir>(servable::RequestReservoirLimits());
  int64_t now_ns = base::MonotonicNs();
  servable::PreparedRun run;
  run.servable = &servable;
  run.signatures = {&servable.signature()};
  run.outputs = all;
  run.inputs = tensor::ShareTensors(inputs);
  const auto request = [&](int64_t received_ns) {
    inference::RunSamples samples;
    run.results.clear();
    servable::RunAlone(&run);
    if (!run.status.ok()) std::abort();
    samples.Keep(run, reservoir, received_ns);
    samples.Give(received_ns);
  };
  const std::string of =
      " rows=" + std::to_string(row_count) + (has_words ? " with a string each" : "");
  Measure(("run" + of).c_str(), 1, 1'000'000, [&](int, int) {
    tensor::TensorList result;
    if (!servable.Run(servable.signature(), all, {}, inputs, &result).ok()) std::abort();
  });
  request(now_ns);
  Measure(("run, not wanted" + of).c_str(), 1, 1'000'000, [&](int, int) { request(now_ns); });
  Measure(("run, kept" + of).c_str(), 1, 50'000, [&](int, int) { request(now_ns += kLaterNs); });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  millpond::bench::MeasureRequests(1, /*has_words=*/false);
  millpond::bench::MeasureRequests(100, /*has_words=*/false);
  millpond::bench::MeasureRequests(100, /*has_words=*/true);
}
