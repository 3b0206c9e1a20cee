// JSON bodies over TensorFlow's tensors; rest_test covers their reading without TensorFlow.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/rest/rest_methods.h"
#include "native/tensor/dtype.h"
#include "native/tf/tensor_storage.h"
#include "tests/native/answer_alone.h"
#include "tests/native/fake_servable.h"
#include "tests/native/tensors.h"

namespace millpond::rest {
namespace {

using base::Status;
using tensorflow::tstring;
using testing::IsSame;
using testing::Vector;
namespace dtype = tensor::dtype;

tensor::Signature EchoOf(const std::string& name, int dtype) {
  tensor::Signature signature;
  signature.name = name;
  signature.inputs = {testing::AnyShapeOf(dtype)};
  signature.inputs[0].name = "x";
  signature.outputs = signature.inputs;
  return signature;
}

class RestTensorsTest : public ::testing::Test {
 protected:
  std::string Predict(const std::string& body) {
    RestReply reply;
    const Status status = testing::AnswerAlone(
        [&](PreparedRest* prepared) { return PreparePredict(servable_, body, prepared); }, &reply);
    return status.ok() ? std::string(reply.body.view()) : status.message();
  }

  // The input of the last run.
  tensorflow::Tensor seen_;
  const testing::FakeServable servable_{
      {"m", 7},
      {EchoOf("serving_default", dtype::kFloat), EchoOf("ids", dtype::kInt64),
       EchoOf("text", dtype::kString), EchoOf("bool", dtype::kBool)},
      [this](const testing::FakeRun& run) {
        seen_ = run.inputs.storage().tensors[0];
        return testing::EchoInputs(run);
      }};
};

TEST_F(RestTensorsTest, NumbersStringsAndBoolsAreTensorFlows) {
  EXPECT_EQ(Predict(R"({"instances": [1, 2.5]})"), R"({"predictions": [1.0, 2.5]})");
  EXPECT_TRUE(IsSame(seen_, Vector<float>({1, 2.5})));
  EXPECT_EQ(Predict(R"({"signature_name": "text", "instances": ["a", {"b64": "/w=="}]})"),
            R"({"predictions": ["a", {"b64": "/w=="}]})");
  EXPECT_TRUE(IsSame(seen_, Vector<tstring>({"a", "\xff"})));
  EXPECT_EQ(Predict(R"({"signature_name": "bool", "inputs": true})"), R"({"outputs": true})");
  EXPECT_TRUE(IsSame(seen_, testing::Scalar<bool>(true)));
  EXPECT_EQ(Predict(R"({"inputs": [[], []]})"), R"({"outputs": [[], []]})");
  EXPECT_EQ(seen_.shape(), tensorflow::TensorShape({2, 0}));
}

TEST_F(RestTensorsTest, GrownTensorKeepsElementsShapeAndAlignment) {
  std::string values = "[";
  constexpr int kRowCount = 5'000;
  for (int i = 0; i < kRowCount; ++i) {
    values += (i > 0 ? ",[" : "[") + std::to_string(i) + "," + std::to_string(-i) + "]";
  }
  Predict(R"({"signature_name": "ids", "instances": )" + values + "]}");
  const tensorflow::Tensor& seen = seen_;
  ASSERT_EQ(seen.shape(), tensorflow::TensorShape({kRowCount, 2}));
  EXPECT_TRUE(seen.IsAligned());
  for (int i = 0; i < kRowCount; ++i) {
    ASSERT_EQ(seen.matrix<int64_t>()(i, 0), i);
    ASSERT_EQ(seen.matrix<int64_t>()(i, 1), -i);
  }
}

TEST_F(RestTensorsTest, StringsThatGrewAreWhole) {
  std::string values;
  std::vector<std::string> expected;
  for (int i = 0; i < 1'000; ++i) {
    expected.push_back(std::string(i % 50, 'x') + std::to_string(i));
    values += (i > 0 ? ",\"" : "\"") + expected.back() + "\"";
  }
  Predict(R"({"signature_name": "text", "inputs": [)" + values + "]}");
  ASSERT_EQ(seen_.NumElements(), 1'000);
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(seen_.vec<tstring>()(i), expected[i]);
}

TEST_F(RestTensorsTest, UnfitValuesAreNamedInTensorFlowsWords) {
  EXPECT_EQ(Predict(R"({"instances": [1, "a"]})"),
            "input 'x' at [1]: \"a\" is not of expected type: float32");
}

}  // namespace
}  // namespace millpond::rest
