// Measures the cost of the reservoir for a request that is not a PredictRequest: if its run is not
// wanted, as is usual, and if it is kept. Uses the inputs of the CTR model, and strings.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "native/base/clock.h"
#include "native/bench/measure.h"
#include "native/inference/run_samples.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::bench {
namespace {

namespace dtype = tensor::dtype;
using servable::RequestReservoir;

constexpr int64_t kIdCount = 26;
constexpr int64_t kDenseCount = 13;
constexpr size_t kWordBytes = 40;
// The time between two requests: longer than the reservoir ever waits between two samples.
constexpr int64_t kLaterNs = 100'000'000;

// A servable whose signature has the first `input_count` of `dense`, `ids` and `words`. Its run
// does nothing.
class IdleServable final : public servable::Servable {
 public:
  explicit IdleServable(size_t input_count) {
    signature_.name = tensor::kDefaultSignatureName;
    signature_.inputs = {{"dense", "dense:0", dtype::kFloat, true, {-1, kDenseCount}},
                         {"ids", "ids:0", dtype::kInt64, true, {-1, kIdCount}},
                         {"words", "words:0", dtype::kString, true, {-1}}};
    signature_.inputs.resize(input_count);
    signature_.outputs.resize(2);
  }
  const tensor::Signature& signature() const { return signature_; }

  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }
  base::Status MakeCallable(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet&, const tensor::RunContext&,
                   const tensor::TensorList&, tensor::TensorList*) const override {
    return {};
  }

 private:
  const servable::ServableId id_{"ctr", 1};
  const tensor::SignatureMap signatures_;
  tensor::Signature signature_;
};

void MakeInputs(int64_t row_count, bool has_words, tensor::TensorList* inputs) {
  inputs->Reset(has_words ? 3 : 2);
  bool is_made = tensor::MakeTensor(dtype::kFloat, {row_count, kDenseCount}, 0, inputs).ok() &&
                 tensor::MakeTensor(dtype::kInt64, {row_count, kIdCount}, 1, inputs).ok();
  if (has_words) is_made &= tensor::MakeTensor(dtype::kString, {row_count}, 2, inputs).ok();
  if (!is_made) std::abort();
  for (int64_t i = 0; has_words && i < row_count; ++i) {
    is_made &= tensor::SetString(2, i, std::string(kWordBytes, 'w'), inputs).ok();
  }
}

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
