// Every method that a version answers is recorded and traced by the version under its own name.
#include "native/rpc/model_method.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/native/predict_messages.h"
#include "tests/native/served_models.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::rpc {
namespace {

using base::Code;
using metrics::Method;
using testing::ExampleListInput;
using testing::ExampleMessage;
using testing::ModelSpecMessage;
using testing::WireMessage;

struct MethodCase {
  Method method;
  std::string path;
  std::string (*request)(const std::string& model);
  Code code;  // of a servable that has no such signature
};

std::string OnExamples(const std::string& model) {
  return ExampleMessage(ModelSpecMessage(model), ExampleListInput({"a"}));
}
std::string OfOneTask(const std::string& model) {
  const WireMessage task =
      WireMessage().Message(1, ModelSpecMessage(model)).Bytes(2, "tensorflow/serving/classify");
  return WireMessage().Message(1, task).Message(2, ExampleListInput({"a"})).bytes();
}
std::string OfOneTarget(const std::string& model) {
  return WireMessage().Message(1, ModelSpecMessage(model)).Bytes(4, "node").bytes();
}

const std::string kPredictions = "/tensorflow.serving.PredictionService/";
const std::vector<MethodCase> kCases{
    {Method::kClassify, kPredictions + "Classify", OnExamples, Code::kInvalidArgument},
    {Method::kRegress, kPredictions + "Regress", OnExamples, Code::kInvalidArgument},
    {Method::kMultiInference, kPredictions + "MultiInference", OfOneTask, Code::kInvalidArgument},
    {Method::kSessionRun, "/tensorflow.serving.SessionService/SessionRun", OfOneTarget,
     Code::kUnimplemented},
};

class ModelMethodTest : public testing::ServedModels,
                        public ::testing::WithParamInterface<MethodCase> {
 protected:
  void SetUp() override {
    options_.serves_session_run = true;
    Start();
  }
  int CodeOf(const std::string& request) {
    return client_->Call(GetParam().path.c_str(), request).status.error_code();
  }
};

TEST_P(ModelMethodTest, IsRecordedByTheVersionThatItReachedAndByNoOther) {
  EXPECT_EQ(CodeOf(GetParam().request("m")), static_cast<int>(GetParam().code));
  EXPECT_EQ(quick_.entry->handle_count(), 0);
  for (const Method method : metrics::AllMethods()) {
    const int64_t count = quick_.entry->requests().Of(method).Snapshot().count();
    EXPECT_EQ(count, method == GetParam().method ? 1 : 0) << MethodName(method);
  }
}

TEST_P(ModelMethodTest, IsRecordedAsUnmatchedIfItReachesNoVersion) {
  EXPECT_EQ(CodeOf(GetParam().request("nobody")), static_cast<int>(Code::kNotFound));
  EXPECT_EQ(CodeOf("\xff"), static_cast<int>(Code::kInvalidArgument));
  const auto unmatched = statistics_->unmatched()->Of(GetParam().method).Snapshot();
  EXPECT_EQ(unmatched.by_code.at(Code::kNotFound).count(), 1);
  EXPECT_EQ(unmatched.by_code.at(Code::kInvalidArgument).count(), 1);
}

using SessionRunThatIsOffTest = testing::ServedModels;

TEST_F(SessionRunThatIsOffTest, IsUnimplementedForAnyRequest) {
  Start();
  for (const std::string& request : {std::string(), std::string("\xff"), OfOneTarget("nobody")}) {
    const auto reply = client_->Call("/tensorflow.serving.SessionService/SessionRun", request);
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_NE(reply.status.error_message().find("--enable_session_run"), std::string::npos);
  }
  const auto refused = statistics_->unmatched()->Of(Method::kSessionRun).Snapshot();
  EXPECT_EQ(refused.by_code.at(Code::kUnimplemented).count(), 3);
}

INSTANTIATE_TEST_SUITE_P(OfEachMethod, ModelMethodTest, ::testing::ValuesIn(kCases),
                         [](const auto& tested) {
                           return std::string(metrics::MethodName(tested.param.method));
                         });

}  // namespace
}  // namespace millpond::rpc
