// Measures the cost of a REST Predict without its run: decoding a body into tensors, and encoding a
// reply. The body has the CTR model's inputs, 26 int64 and 13 float a row. Times are for a whole
// body.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "native/bench/measure.h"
#include "native/rest/json_tensor_writer.h"
#include "native/rest/predict_body.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_access.h"

namespace millpond::bench {
namespace {

namespace dtype = tensor::dtype;
constexpr int64_t kIdCount = 26;
constexpr int64_t kDenseCount = 13;
constexpr uint64_t kTableRows = 100'000;

// A servable with signatures whose run does nothing.
class CtrServable final : public servable::Servable {
 public:
  CtrServable() {
    tensor::Signature ctr;
    ctr.name = tensor::kDefaultSignatureName;
    ctr.inputs = {{"dense", "dense:0", dtype::kFloat, true, {-1, kDenseCount}},
                  {"ids", "ids:0", dtype::kInt64, true, {-1, kIdCount}}};
    ctr.outputs = ctr.inputs;
    signatures_[ctr.name] = ctr;
  }
  const tensor::Signature& ctr() const { return signatures_.begin()->second; }

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
  tensor::SignatureMap signatures_;
};

void MakeInputs(int64_t row_count, tensor::TensorList* inputs) {
  std::mt19937_64 rng(2'026);
  std::uniform_real_distribution<float> dense(0, 1);
  inputs->Reset(2);
  const bool is_made =
      tensor::MakeTensor(dtype::kFloat, {row_count, kDenseCount}, 0, inputs).ok() &&
      tensor::MakeTensor(dtype::kInt64, {row_count, kIdCount}, 1, inputs).ok();
  if (!is_made) std::abort();
  auto* const floats = static_cast<float*>(tensor::MutableElements(0, inputs));
  for (int64_t i = 0; i < row_count * kDenseCount; ++i) floats[i] = dense(rng);
  auto* const ids = static_cast<int64_t*>(tensor::MutableElements(1, inputs));
  for (int64_t i = 0; i < row_count * kIdCount; ++i) {
    ids[i] = static_cast<int64_t>(rng() % kTableRows);
  }
}

base::ReplyBytes Written(const CtrServable& servable, rest::BodyFormat format,
                         const tensor::TensorList& tensors) {
  auto text = rest::WritePredictReply(servable.ctr(), format, tensors, {});
  if (!text.ok()) std::abort();
  return std::move(text.value());
}

void MeasureRows(int64_t row_count, rest::BodyFormat format) {
  const CtrServable servable;
  tensor::TensorList inputs;
  MakeInputs(row_count, &inputs);
  const std::string reply(Written(servable, format, inputs).view());
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
          [&](int, int) { Keep(Written(servable, format, inputs).data()); });
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
