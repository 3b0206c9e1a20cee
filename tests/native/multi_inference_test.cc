#include "native/inference/multi_inference.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/native/answer_alone.h"
#include "tests/native/predict_messages.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::ExampleListInput;
using testing::ExampleServable;
using testing::FloatTensor;
using testing::LabelSpecMessage;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::StringTensor;
using testing::WireMessage;

constexpr char kClassify[] = "tensorflow/serving/classify";
constexpr char kRegress[] = "tensorflow/serving/regress";

WireMessage Task(const std::string& signature, const std::string& method) {
  return WireMessage().Message(1, ModelSpecMessage("m", {}, signature)).Bytes(2, method);
}

WireMessage Request(const std::vector<WireMessage>& tasks) {
  WireMessage request;
  for (const WireMessage& task : tasks) request.Message(1, task);
  return request.Message(2, ExampleListInput({"a"}));
}

class MultiInferenceTest : public ::testing::Test {
 protected:
  MultiInferenceTest() {
    servable_.Add("serving_default", {"classes"}, {StringTensor({"x"}, {1, 1})});
    servable_.Add("number", {"outputs"}, {FloatTensor({0.5F}, {1})});
    servable_.Add("elsewhere", {"outputs"}, {FloatTensor({0.5F}, {1})}).inputs[0].tensor_name =
        "other:0";
  }

  base::StatusOr<std::string> Ask(const WireMessage& message) {
    const SegmentedBytes bytes(message.bytes());
    MultiInferenceRequest request;
    MILLPOND_RETURN_IF_ERROR(DecodeMultiInferenceRequest(bytes.reader(), &request));
    const auto spec = SpecOfAllTasks(request);
    if (!spec.ok()) return spec.status();
    base::ReplyBytes reply;
    MILLPOND_RETURN_IF_ERROR(testing::AnswerAlone(
        [&](Prepared<base::ReplyBytes>* prepared) {
          return PrepareMultiInference(servable_, request, prepared);
        },
        &reply));
    return std::string(reply.view());
  }
  void ExpectRefused(const std::vector<WireMessage>& tasks, Code code,
                     const std::string& in_message) {
    const auto reply = Ask(Request(tasks));
    EXPECT_EQ(reply.status().code(), code);
    EXPECT_NE(reply.status().message().find(in_message), std::string::npos)
        << reply.status().message();
    EXPECT_TRUE(servable_.runs.empty());
  }

  ExampleServable servable_;
};

TEST_F(MultiInferenceTest, AnswersEachTaskInItsOrderFromTheSameExamples) {
  const WireMessage number =
      WireMessage()
          .Message(1, ModelSpecMessage("m", 7, "number"))
          .Message(3, WireMessage().Message(1, WireMessage().Fixed32(1, 0x3f000000)));
  const WireMessage classes =
      WireMessage()
          .Message(1, ModelSpecMessage("m", 7, "serving_default"))
          .Message(2,
                   WireMessage().Message(1, WireMessage().Message(1, WireMessage().Bytes(1, "x"))));
  EXPECT_EQ(Ask(Request({Task("number", kRegress), Task("", kClassify)})).value(),
            WireMessage().Message(1, number).Message(1, classes).bytes());
  EXPECT_EQ(servable_.runs, (std::vector<std::vector<std::string>>{{"a"}, {"a"}}));
  EXPECT_EQ(servable_.together_count, 1);
}

TEST_F(MultiInferenceTest, SignaturesOfDifferentInputsGetTheSameExamples) {
  const auto result_of = [](const std::string& signature) {
    return WireMessage()
        .Message(1, ModelSpecMessage("m", 7, signature))
        .Message(3, WireMessage().Message(1, WireMessage().Fixed32(1, 0x3f000000)));
  };
  EXPECT_EQ(
      Ask(Request({Task("elsewhere", kRegress), Task("number", kRegress)})).value(),
      WireMessage().Message(1, result_of("elsewhere")).Message(1, result_of("number")).bytes());
  EXPECT_EQ(servable_.runs, (std::vector<std::vector<std::string>>{{"a"}, {"a"}}));
  EXPECT_EQ(servable_.together_count, 1);
}

TEST_F(MultiInferenceTest, AnswersAreTheSameOfOneRunAndOfSeveral) {
  const WireMessage request = Request({Task("elsewhere", kRegress), Task("", kClassify)});
  const auto of_several = Ask(request);
  ASSERT_TRUE(of_several.ok());
  servable_.can_run_together = true;
  EXPECT_EQ(Ask(request).value(), of_several.value());
}

TEST_F(MultiInferenceTest, ARunThatFailsAnswersNothing) {
  servable_.fails_with = base::InvalidArgument("a kernel's");
  for (const bool can_run_together : {false, true}) {
    servable_.can_run_together = can_run_together;
    const auto reply = Ask(Request({Task("number", kRegress), Task("", kClassify)}));
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(reply.status().message(), "a kernel's");
  }
}

TEST_F(MultiInferenceTest, ExamplesThatOneInputDoesNotTakeRunNothing) {
  servable_.Add("of_numbers", {"outputs"}, {FloatTensor({0.5F}, {1})}).inputs[0].dtype =
      tensor::dtype::kFloat;
  ExpectRefused({Task("number", kRegress), Task("of_numbers", kRegress)}, Code::kInvalidArgument,
                "signature 'of_numbers': input 'inputs' is");
}

TEST_F(MultiInferenceTest, AnOutputOfAnotherShapeIsItsSignaturesError) {
  servable_.Add("two", {"outputs"}, {FloatTensor({0.5F, 0.5F}, {2})});
  const auto reply = Ask(Request({Task("number", kRegress), Task("two", kRegress)}));
  EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
  EXPECT_NE(reply.status().message().find("signature 'two'"), std::string::npos)
      << reply.status().message();
}

TEST_F(MultiInferenceTest, NothingRunsUnlessAllTasksCan) {
  const WireMessage sound = Task("number", kRegress);
  ExpectRefused({}, Code::kInvalidArgument, "Missing ModelSpec");
  ExpectRefused({sound, Task("number", kRegress)}, Code::kInvalidArgument,
                "Duplicate evaluation of signature: number");
  ExpectRefused({Task("", kClassify), Task("serving_default", kClassify)}, Code::kInvalidArgument,
                "Duplicate evaluation of signature: serving_default");
  ExpectRefused({sound, Task("", "tensorflow/serving/predict")}, Code::kUnimplemented,
                "Unsupported signature method_name: tensorflow/serving/predict");
  ExpectRefused({sound, Task("nobody", kRegress)}, Code::kInvalidArgument, "nobody");
  ExpectRefused({sound, Task("", kRegress)}, Code::kInvalidArgument, "Expected one output Tensor");
  ExpectRefused({sound, WireMessage().Bytes(2, kRegress)}, Code::kInvalidArgument,
                "empty model name");
}

class SpecOfAllTasksTest : public ::testing::Test {
 protected:
  static base::StatusOr<ModelSpec> SpecOf(const std::vector<WireMessage>& specs) {
    std::vector<WireMessage> tasks;
    for (const WireMessage& spec : specs) tasks.push_back(WireMessage().Message(1, spec));
    const WireMessage message = Request(tasks);
    const SegmentedBytes bytes(message.bytes());
    MultiInferenceRequest request;
    EXPECT_TRUE(DecodeMultiInferenceRequest(bytes.reader(), &request).ok());
    return SpecOfAllTasks(request);
  }
};

TEST_F(SpecOfAllTasksTest, IsThatOfTheTaskThatNamesAVersion) {
  EXPECT_EQ(SpecOf({ModelSpecMessage("m"), ModelSpecMessage("m")}).value().version, std::nullopt);
  EXPECT_EQ(SpecOf({ModelSpecMessage("m"), ModelSpecMessage("m", 3)}).value().version, 3);
  EXPECT_EQ(SpecOf({ModelSpecMessage("m", 3), ModelSpecMessage("m")}).value().version, 3);
  EXPECT_EQ(SpecOf({LabelSpecMessage("m", "l"), ModelSpecMessage("m")}).value().version_label, "l");
}

TEST_F(SpecOfAllTasksTest, TasksOfDifferentVersionsHaveNone) {
  const auto expect_refused = [](const std::vector<WireMessage>& specs, const char* in_message) {
    const auto refused = SpecOf(specs);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(in_message), std::string::npos)
        << refused.status().message();
  };
  expect_refused({ModelSpecMessage("m"), ModelSpecMessage("n")}, "same model name");
  expect_refused({ModelSpecMessage("m", 3), ModelSpecMessage("m", 4)}, "same version");
  expect_refused({ModelSpecMessage("m", 3), ModelSpecMessage("m"), ModelSpecMessage("m", 4)},
                 "same version");
  expect_refused({ModelSpecMessage("m", 3), LabelSpecMessage("m", "l")}, "same version");
}

TEST(MultiInferenceRequestTest, TooManyTasksAndOtherBytesAreRefused) {
  std::string bytes;
  for (int i = 0; i < 10'001; ++i) bytes += std::string("\x0a\x00", 2);
  for (const std::string& bad : {bytes, std::string("\xff"), std::string("\x0a\x01\xff")}) {
    const SegmentedBytes segmented(bad);
    MultiInferenceRequest request;
    EXPECT_EQ(DecodeMultiInferenceRequest(segmented.reader(), &request).code(),
              Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millpond::inference
