#include "native/inference/answer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/native/predict_messages.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::ExampleListInput;
using testing::ExampleMessage;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::WireMessage;

class AnswerTest : public ::testing::Test {
 protected:
  AnswerTest() {
    servable_.Add("serving_default", {"classes"}, {testing::StringTensor({"x"}, {1, 1})});
    servable_.Add("number", {"outputs"}, {testing::FloatTensor({0.5F}, {1})});
  }
  base::StatusOr<std::string> Ask(const std::string& method, const std::string& request) {
    const SegmentedBytes bytes(request);
    return AnswerRequest(servable_, method, bytes.reader());
  }

  testing::ExampleServable servable_;
};

TEST_F(AnswerTest, EachMethodTakesItsOwnRequest) {
  const WireMessage input = ExampleListInput({"a"});
  EXPECT_TRUE(Ask("Classify", ExampleMessage(ModelSpecMessage("m"), input)).ok());
  EXPECT_TRUE(Ask("Regress", ExampleMessage(ModelSpecMessage("m", {}, "number"), input)).ok());
  const WireMessage task = WireMessage()
                               .Message(1, ModelSpecMessage("m", {}, "number"))
                               .Bytes(2, "tensorflow/serving/regress");
  EXPECT_TRUE(Ask("MultiInference", WireMessage().Message(1, task).Message(2, input).bytes()).ok());
  EXPECT_TRUE(Ask("Predict", PredictMessage(ModelSpecMessage("m"), {{"inputs", "t"}})).ok());
  EXPECT_EQ(servable_.runs.size(), 4U);
}

TEST_F(AnswerTest, AnotherSignatureIsThatMethodsToRefuse) {
  const std::string request = ExampleMessage(ModelSpecMessage("m"), ExampleListInput({"a"}));
  EXPECT_EQ(Ask("Regress", request).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Ask("MultiInference", "").status().code(), Code::kInvalidArgument);
}

TEST_F(AnswerTest, ARunHasTheCancellationOfItsCaller) {
  const std::atomic<bool> is_cancelled{false};
  const std::string request = PredictMessage(ModelSpecMessage("m"), {{"inputs", "t"}});
  const SegmentedBytes bytes(request);
  ASSERT_TRUE(AnswerRequest(servable_, "Predict", bytes.reader(), tensor::RunContext::kNoDeadline,
                            &is_cancelled)
                  .ok());
  EXPECT_EQ(servable_.cancellation, &is_cancelled);
}

TEST_F(AnswerTest, AMethodThatNoRecordIsOfIsUnimplemented) {
  for (const char* const method : {"SessionRun", "predict", ""}) {
    EXPECT_EQ(Ask(method, "").status().code(), Code::kUnimplemented);
  }
}

}  // namespace
}  // namespace millpond::inference
