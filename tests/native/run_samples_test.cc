// Samples of requests other than PredictRequest, over TensorFlow's tensors.
#include "native/inference/run_samples.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/inference/predict.h"
#include "native/inference/predict_codec.h"
#include "native/tf/tensor_storage.h"
#include "tests/native/fake_servable.h"
#include "tests/native/tensors.h"

namespace millpond::inference {
namespace {

using base::Status;
using servable::RequestReservoir;
using servable::RequestReservoirLimits;
using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::tstring;
using testing::IsSame;
using testing::Vector;

constexpr int64_t kNowNs = 1'000'000'000;
// Above the longest time between two samples.
constexpr int64_t kNextSampleNs = 100'000'000;

tensor::Signature EchoOf(DataType a, DataType b) {
  tensor::Signature signature;
  signature.name = "echo";
  signature.inputs = {testing::AnyShapeOf(a), testing::AnyShapeOf(b)};
  signature.outputs = signature.inputs;
  signature.inputs[0].name = "a";
  signature.inputs[1].name = "b";
  signature.outputs[0].name = "p";
  signature.outputs[1].name = "q";
  return signature;
}

// Returns the inputs a and b, of the dtypes that a test sets, as p and q.
class EchoServable final : public testing::FakeServable {
 public:
  EchoServable(DataType a, DataType b)
      : FakeServable({"m", 7}, {EchoOf(a, b)}, [this](const testing::FakeRun& run) {
          seen = run.inputs.storage().tensors;
          asked = run.outputs;
          MILLPOND_RETURN_IF_ERROR(testing::EchoInputs(run));
          return fails_with;
        }) {}

  std::optional<Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                    const tensor::RunContext& run, const tensor::TensorList& inputs,
                                    std::vector<tensor::TensorList>* results) const override {
    results->resize(1);
    return Run(*signatures[0], tensor::OutputSet::All(2), run, inputs, &(*results)[0]);
  }

  bool CompilesEachShape() const override { return is_compiled; }

  bool is_compiled = false;
  // The outputs of the last run.
  mutable std::vector<Tensor> seen;
  mutable tensor::OutputSet asked;
  Status fails_with;
};

// A tensor of two rows of three.
Tensor PatternOf(DataType dtype) {
  Tensor tensor(dtype, {2, 3});
  if (dtype == tensorflow::DT_STRING) {
    for (int i = 0; i < 6; ++i) tensor.flat<tstring>()(i) = std::string(i * 20, 'a' + i) + '\0';
    return tensor;
  }
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  for (size_t i = 0; i < tensor.TotalBytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == tensorflow::DT_BOOL ? i % 2 : 37 * i + 1);
  }
  return tensor;
}

class RunSamplesTest : public ::testing::Test {
 protected:
  static RequestReservoirLimits LimitsOf(size_t bytes_max) {
    RequestReservoirLimits limits;
    limits.bytes_max = bytes_max;
    return limits;
  }

  // Returns a run of all signatures as one.
  static servable::PreparedRun RunOf(const EchoServable& servable, std::vector<Tensor> inputs) {
    servable::PreparedRun run;
    run.servable = &servable;
    run.signatures = {&servable.signatures().at("echo")};
    run.inputs.storage().tensors = std::move(inputs);
    return run;
  }

  // Records a request at `now_ns` that is answered at once.
  Status Run(const EchoServable& servable, std::vector<Tensor> inputs,
             const tensor::OutputSet& outputs = tensor::OutputSet::All(2),
             int64_t now_ns = kNowNs) {
    RunSamples samples;
    {
      servable::PreparedRun run = RunOf(servable, std::move(inputs));
      run.outputs = outputs;
      servable::RunAlone(&run);
      MILLPOND_RETURN_IF_ERROR(run.status);
      samples.Keep(run, reservoir_, now_ns);
    }
    samples.Give(now_ns);
    return {};
  }

  std::vector<servable::SampledRequest> Kept() { return reservoir_->Requests(kNowNs); }

  // Sends the sample to a servable with the same signature and returns the answer.
  static void Replay(const std::string& bytes, const EchoServable& next) {
    const testing::SegmentedBytes segmented(bytes, {bytes.size() / 3});
    PredictRequest request;
    ASSERT_TRUE(DecodePredictRequest(segmented.reader(), &request).ok());
    EXPECT_EQ(request.model_spec->name, "m");
    EXPECT_EQ(request.model_spec->signature_name, "echo");
    EXPECT_FALSE(request.model_spec->version);
    PredictReply reply;
    const Status answered = Predict(next, request, {}, &reply);
    ASSERT_TRUE(answered.ok()) << answered.message();
  }

  std::shared_ptr<RequestReservoir> reservoir_ =
      std::make_shared<RequestReservoir>(RequestReservoirLimits());
};

class RunSamplesOfDtype : public RunSamplesTest, public ::testing::WithParamInterface<DataType> {};

TEST_P(RunSamplesOfDtype, SamplesRunTheSameOnAnotherVersion) {
  const Tensor a = PatternOf(GetParam());
  const Tensor b = Vector<tstring>({"", "two"});
  const EchoServable servable(GetParam(), tensorflow::DT_STRING);
  ASSERT_TRUE(Run(servable, {a, b}).ok());
  ASSERT_EQ(Kept().size(), 1);
  const EchoServable next(GetParam(), tensorflow::DT_STRING);
  Replay(Kept()[0].bytes, next);
  ASSERT_EQ(next.seen.size(), 2);
  EXPECT_TRUE(IsSame(next.seen[0], a));
  EXPECT_TRUE(IsSame(next.seen[1], b));
  EXPECT_TRUE(next.asked.IsAll());
}

INSTANTIATE_TEST_SUITE_P(
    All, RunSamplesOfDtype,
    ::testing::Values(tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_HALF,
                      tensorflow::DT_BFLOAT16, tensorflow::DT_INT8, tensorflow::DT_INT16,
                      tensorflow::DT_INT32, tensorflow::DT_INT64, tensorflow::DT_UINT8,
                      tensorflow::DT_UINT16, tensorflow::DT_UINT32, tensorflow::DT_UINT64,
                      tensorflow::DT_BOOL, tensorflow::DT_STRING, tensorflow::DT_COMPLEX64,
                      tensorflow::DT_QUINT8),
    [](const auto& tested) { return tensorflow::DataTypeString(tested.param); });

TEST_F(RunSamplesTest, ScalarsAndEmptyTensorsKeepTheirShapes) {
  const Tensor scalar = testing::Scalar<int64_t>(-5);
  const Tensor empty(tensorflow::DT_FLOAT, {0, 3});
  ASSERT_TRUE(Run({tensorflow::DT_INT64, tensorflow::DT_FLOAT}, {scalar, empty}).ok());
  const EchoServable next(tensorflow::DT_INT64, tensorflow::DT_FLOAT);
  Replay(Kept().at(0).bytes, next);
  EXPECT_TRUE(IsSame(next.seen.at(0), scalar));
  EXPECT_TRUE(IsSame(next.seen.at(1), empty));
}

TEST_F(RunSamplesTest, SomeOutputsAreKeptAsAKindOfTheirOwn) {
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  tensor::OutputSet q(2);
  q.Add(1);
  for (const tensor::OutputSet& outputs : {tensor::OutputSet::All(2), q, q}) {
    ASSERT_TRUE(Run(servable, {Vector<float>({1}), Vector<float>({2})}, outputs).ok());
  }
  ASSERT_EQ(Kept().size(), 2);
  const EchoServable next(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  for (const auto& kept : Kept()) {
    Replay(kept.bytes, next);
    EXPECT_TRUE(next.asked == q || next.asked.IsAll());
    if (next.asked == q) return;
  }
  FAIL() << "none has the filter";
}

TEST_F(RunSamplesTest, RequestSharesTheKindOfItsPredictRequest) {
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  ASSERT_TRUE(Run(servable, {Vector<float>({1}), Vector<float>({2})}).ok());
  const std::string bytes = Kept().at(0).bytes;
  const servable::RequestKind kind("echo", tensor::OutputSet::All(2), bytes.size());
  EXPECT_FALSE(reservoir_->Wants(kind, kNowNs));
  EXPECT_EQ(Kept()[0].pair, kind.pair);
}

// Another version that is loaded meanwhile, and perhaps never serves, changes nothing.
TEST_F(RunSamplesTest, SizesAreKindsIfTheAnsweringVersionIsCompiled) {
  EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  for (const bool is_compiled : {false, true}) {
    servable.is_compiled = is_compiled;
    ASSERT_TRUE(Run(servable, {Vector<float>({1}), Vector<float>({2})}).ok());
    const size_t bytes = Kept().at(0).bytes.size();
    const servable::RequestKind kind("echo", tensor::OutputSet::All(2), bytes, is_compiled);
    EXPECT_FALSE(reservoir_->Wants(kind, kNowNs)) << is_compiled;
    const servable::RequestKind next("echo", tensor::OutputSet::All(2), bytes + 1, is_compiled);
    EXPECT_EQ(reservoir_->Wants(next, kNowNs), is_compiled);
  }
}

TEST_F(RunSamplesTest, EachSignatureOfAJointRunIsKept) {
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  RunSamples samples;
  servable::PreparedRun run = RunOf(servable, {Vector<float>({1}), Vector<float>({2})});
  servable::RunAlone(&run);
  ASSERT_TRUE(run.status.ok());
  ASSERT_EQ(run.results.size(), 1);
  EXPECT_EQ(run.results[0].size(), 2);
  samples.Keep(run, reservoir_, kNowNs);
  samples.Give(kNowNs);
  ASSERT_EQ(Kept().size(), 1);
  const EchoServable next(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  Replay(Kept()[0].bytes, next);
  EXPECT_TRUE(IsSame(next.seen.at(1), Vector<float>({2})));
}

TEST_F(RunSamplesTest, ARunThatFailsIsNotKept) {
  EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  servable.fails_with = base::Internal("a kernel's");
  EXPECT_EQ(Run(servable, {Vector<float>({1}), Vector<float>({2})}).message(), "a kernel's");
  EXPECT_TRUE(Kept().empty());
}

TEST_F(RunSamplesTest, ARequestThatIsTooLargeOnceItIsWrittenIsNotKept) {
  reservoir_ = std::make_shared<RequestReservoir>(LimitsOf(4 * 1'024));
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  const Tensor fits(tensorflow::DT_FLOAT, {200});
  const Tensor is_too_large(tensorflow::DT_FLOAT, {300});
  ASSERT_TRUE(Run(servable, {is_too_large, Vector<float>({2})}).ok());
  EXPECT_TRUE(Kept().empty());
  ASSERT_TRUE(Run(servable, {fits, Vector<float>({2})}).ok());
  EXPECT_EQ(Kept().size(), 1);
}

TEST_F(RunSamplesTest, RunsStayTheSameWithoutAReservoir) {
  reservoir_ = nullptr;
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  EXPECT_TRUE(Run(servable, {Vector<float>({1}), Vector<float>({2})}).ok());
  EXPECT_TRUE(IsSame(servable.seen.at(1), Vector<float>({2})));
}

TEST_F(RunSamplesTest, InputsOutliveTheRunOnlyForASample) {
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  const auto is_held_after_run = [&] {
    const Tensor a = Vector<float>({1});
    RunSamples samples;
    {
      servable::PreparedRun run = RunOf(servable, {a, Vector<float>({2})});
      servable::RunAlone(&run);
      EXPECT_TRUE(run.status.ok());
      samples.Keep(run, reservoir_, kNowNs);
      servable.seen.clear();
    }
    const bool is_held = !a.RefCountIsOne();
    samples.Give(kNowNs);
    return is_held;
  };
  EXPECT_TRUE(is_held_after_run());
  EXPECT_FALSE(is_held_after_run());
}

TEST_F(RunSamplesTest, OfOneKindTheNextIsKeptOnceItsTimeHasCome) {
  const EchoServable servable(tensorflow::DT_FLOAT, tensorflow::DT_FLOAT);
  const auto run = [&](float a, int64_t now_ns) {
    return Run(servable, {Vector<float>({a}), Vector<float>({2})}, tensor::OutputSet::All(2),
               now_ns);
  };
  ASSERT_TRUE(run(1, kNowNs).ok());
  ASSERT_TRUE(run(2, kNowNs + 1).ok());
  EXPECT_EQ(Kept().size(), 1);
  ASSERT_TRUE(run(3, kNowNs + kNextSampleNs).ok());
  EXPECT_EQ(Kept().size(), 2);
}

}  // namespace
}  // namespace millpond::inference
