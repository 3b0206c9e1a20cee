// Measures the cost of a REST Predict without its run: decoding a body into tensors, and encoding a
// reply. The body has the CTR model's inputs, 26 int64 and 13 float a row. Times are for a whole
// body.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "native/bench/idle_servable.h"
#include "native/bench/measure.h"
#include "native/rest/json_tensor_writer.h"
#include "native/rest/predict_body.h"
#include "native/tensor/tensor_access.h"

namespace millpond::bench {
namespace {

constexpr uint64_t kTableRows = 100'000;

// The signature of a reply with the servable's inputs.
tensor::Signature EchoOf(const IdleServable& servable) {
  tensor::Signature echo = servable.signature();
  echo.outputs = echo.inputs;
  return echo;
}

// Fills the tensors of MakeInputs, because a number's length decides its cost.
void FillInputs(int64_t row_count, tensor::TensorList* inputs) {
  std::mt19937_64 rng(2'026);
  std::uniform_real_distribution<float> dense(0, 1);
  auto* const floats = static_cast<float*>(tensor::MutableElements(0, inputs));
  for (int64_t i = 0; i < row_count * kDenseCount; ++i) floats[i] = dense(rng);
  auto* const ids = static_cast<int64_t*>(tensor::MutableElements(1, inputs));
  for (int64_t i = 0; i < row_count * kIdCount; ++i) {
    ids[i] = static_cast<int64_t>(rng() % kTableRows);
  }
}

base::ReplyBytes Written(const tensor::Signature& signature, rest::BodyFormat format,
                         const tensor::TensorList& tensors) {
  auto text = rest::WritePredictReply(signature, format, tensors, {});
  if (!text.ok()) std::abort();
  return std::move(text.value());
}

void MeasureRows(int64_t row_count, rest::BodyFormat format) {
  const IdleServable servable(2);
  const tensor::Signature echo = EchoOf(servable);
  tensor::TensorList inputs;
  MakeInputs(row_count, /*has_words=*/false, &inputs);
  FillInputs(row_count, &inputs);
  const std::string reply(Written(echo, format, inputs).view());
  const bool is_row = format == rest::BodyFormat::kRow;
  const std::string body =
      (is_row ? R"({"instances")" : R"({"inputs")") + reply.substr(reply.find(':'));
  const std::string what = std::string(is_row ? " rows=" : " columns=") +
                           std::to_string(row_count) + " bytes=" + std::to_string(body.size());
  const int call_count = static_cast<int>(200'000 / row_count);
  Measure(("decode" + what).c_str(), 1, call_count, [&](int, int) {
    rest::PredictBody read;
    if (!rest::ReadPredictBody(servable, body, &read).ok()) std::abort();
    Keep(&read);
  });
  Measure(("encode" + what).c_str(), 1, call_count,
          [&](int, int) { Keep(Written(echo, format, inputs).data()); });
}

}  // namespace
}  // namespace millpond::bench

int main() {
  std::printf("a row has %d elements; times are of a whole body\n",
              static_cast<int>(millpond::bench::kIdCount + millpond::bench::kDenseCount));
  for (const int64_t row_count : {1, 100}) {
    millpond::bench::MeasureRows(row_count, millpond::rest::BodyFormat::kRow);
    millpond::bench::MeasureRows(row_count, millpond::rest::BodyFormat::kColumnar);
  }
}
