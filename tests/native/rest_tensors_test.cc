// JSON bodies over TensorFlow's tensors; rest_test covers their reading without TensorFlow.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/rest/rest_methods.h"
#include "native/tensor/dtype.h"
#include "native/tf/tensor_storage.h"
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

class EchoServable final : public servable::Servable {
 public:
  EchoServable() {
    signatures_["serving_default"] = EchoOf("serving_default", dtype::kFloat);
    signatures_["ids"] = EchoOf("ids", dtype::kInt64);
    signatures_["text"] = EchoOf("text", dtype::kString);
    signatures_["bool"] = EchoOf("bool", dtype::kBool);
  }
  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }
  Status Prepare(const tensor::Signature&, const tensor::OutputSet&) const override { return {}; }
  Status Run(const tensor::Signature&, const tensor::OutputSet&, const tensor::RunContext&,
             const tensor::TensorList& inputs, tensor::TensorList* result) const override {
    seen_ = inputs.storage().tensors[0];
    result->Reset(1);
    result->storage().tensors[0] = seen_;
    return {};
  }
  const tensorflow::Tensor& seen() const { return seen_; }

 private:
  const servable::ServableId id_{"m", 7};
  tensor::SignatureMap signatures_;
  mutable tensorflow::Tensor seen_;
};

class RestTensorsTest : public ::testing::Test {
 protected:
  std::string Predict(const std::string& body) {
    RestReply reply;
    const Status status = rest::Predict(servable_, body, tensor::RunContext(), &reply);
    return status.ok() ? std::string(reply.body.view()) : status.message();
  }

  EchoServable servable_;
};

TEST_F(RestTensorsTest, NumbersStringsAndBoolsAreTensorFlows) {
  EXPECT_EQ(Predict(R"({"instances": [1, 2.5]})"), R"({"predictions": [1.0, 2.5]})");
  EXPECT_TRUE(IsSame(servable_.seen(), Vector<float>({1, 2.5})));
  EXPECT_EQ(Predict(R"({"signature_name": "text", "instances": ["a", {"b64": "/w=="}]})"),
            R"({"predictions": ["a", {"b64": "/w=="}]})");
  EXPECT_TRUE(IsSame(servable_.seen(), Vector<tstring>({"a", "\xff"})));
  EXPECT_EQ(Predict(R"({"signature_name": "bool", "inputs": true})"), R"({"outputs": true})");
  EXPECT_TRUE(IsSame(servable_.seen(), testing::Scalar<bool>(true)));
  EXPECT_EQ(Predict(R"({"inputs": [[], []]})"), R"({"outputs": [[], []]})");
  EXPECT_EQ(servable_.seen().shape(), tensorflow::TensorShape({2, 0}));
}

TEST_F(RestTensorsTest, GrownTensorKeepsElementsShapeAndAlignment) {
  std::string values = "[";
  constexpr int kRowCount = 5'000;
  for (int i = 0; i < kRowCount; ++i) {
    values += (i > 0 ? ",[" : "[") + std::to_string(i) + "," + std::to_string(-i) + "]";
  }
  Predict(R"({"signature_name": "ids", "instances": )" + values + "]}");
  const tensorflow::Tensor& seen = servable_.seen();
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
  ASSERT_EQ(servable_.seen().NumElements(), 1'000);
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(servable_.seen().vec<tstring>()(i), expected[i]);
}

TEST_F(RestTensorsTest, UnfitValuesAreNamedInTensorFlowsWords) {
  EXPECT_EQ(Predict(R"({"instances": [1, "a"]})"),
            "input 'x' at [1]: \"a\" is not of expected type: float32");
}

}  // namespace
}  // namespace millpond::rest
