#include "native/inference/classify.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/inference/regress.h"
#include "tests/native/answer_alone.h"
#include "tests/native/predict_messages.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using base::Status;
using testing::ExampleListInput;
using testing::ExampleMessage;
using testing::ExampleServable;
using testing::FloatTensor;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::SpecOf;
using testing::StringTensor;
using testing::WireMessage;

constexpr uint32_t kHalfBits = 0x3f000000;
constexpr uint32_t kMinusZeroBits = 0x80000000;

class ExampleMethodsTest : public ::testing::Test {
 protected:
  using Preparer = Status (*)(const servable::Servable&, const ExampleRequest&,
                              Prepared<base::ReplyBytes>*);

  base::StatusOr<std::string> Ask(Preparer prepare, const std::string& signature,
                                  const WireMessage& input = ExampleListInput({"a", "b"})) {
    const SegmentedBytes bytes(ExampleMessage(ModelSpecMessage("m", {}, signature), input));
    ExampleRequest request;
    MILLPOND_RETURN_IF_ERROR(DecodeExampleRequest(bytes.reader(), "a request", &request));
    base::ReplyBytes reply;
    MILLPOND_RETURN_IF_ERROR(testing::AnswerAlone(
        [&](Prepared<base::ReplyBytes>* prepared) { return prepare(servable_, request, prepared); },
        &reply));
    return std::string(reply.view());
  }
  void ExpectRefused(Preparer prepare, const std::string& signature,
                     const std::string& in_message) {
    const auto reply = Ask(prepare, signature);
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_NE(reply.status().message().find(in_message), std::string::npos)
        << reply.status().message();
  }

  ExampleServable servable_;
};

using ClassifyTest = ExampleMethodsTest;
using RegressTest = ExampleMethodsTest;

TEST_F(ClassifyTest, ReturnsLabelsAndScoresPerExampleAndVersion) {
  servable_.Add(
      "serving_default", {"classes", "scores"},
      {StringTensor({"x", "", "z", "w"}, {2, 2}), FloatTensor({0.5F, 0, -0.0F, 0.5F}, {2, 2})});
  const WireMessage first = WireMessage()
                                .Message(1, WireMessage().Bytes(1, "x").Fixed32(2, kHalfBits))
                                .Message(1, WireMessage());
  const WireMessage second = WireMessage()
                                 .Message(1, WireMessage().Bytes(1, "z").Fixed32(2, kMinusZeroBits))
                                 .Message(1, WireMessage().Bytes(1, "w").Fixed32(2, kHalfBits));
  EXPECT_EQ(Ask(PrepareClassify, "").value(),
            WireMessage()
                .Message(1, WireMessage().Message(1, first).Message(1, second))
                .Message(2, ModelSpecMessage("m", 7, "serving_default"))
                .bytes());
  EXPECT_EQ(servable_.runs, (std::vector<std::vector<std::string>>{{"a", "b"}}));
}

TEST_F(ClassifyTest, LabelsAloneAndScoresAloneAreEnough) {
  servable_.Add("labels", {"classes"}, {StringTensor({"x", "y"}, {2, 1})});
  servable_.Add("scores", {"scores"}, {FloatTensor({0.5F, 0.5F}, {2, 1})});
  const auto body = [](const WireMessage& one, const WireMessage& two, const char* signature) {
    const WireMessage result = WireMessage()
                                   .Message(1, WireMessage().Message(1, one))
                                   .Message(1, WireMessage().Message(1, two));
    return WireMessage().Message(1, result).Message(2, ModelSpecMessage("m", 7, signature)).bytes();
  };
  EXPECT_EQ(Ask(PrepareClassify, "labels").value(),
            body(WireMessage().Bytes(1, "x"), WireMessage().Bytes(1, "y"), "labels"));
  const WireMessage half = WireMessage().Fixed32(2, kHalfBits);
  EXPECT_EQ(Ask(PrepareClassify, "scores").value(), body(half, half, "scores"));
}

TEST_F(ClassifyTest, AnotherSignatureIsRefusedBeforeItRuns) {
  servable_.Add("regress", {"outputs"}, {});
  servable_.Add("three", {"classes", "more", "scores"}, {});
  servable_.Add("two_inputs", {"classes"}, {}).inputs.push_back(SpecOf("more"));
  servable_.Add("other_input", {"classes"}, {}).inputs[0].name = "text";
  ExpectRefused(PrepareClassify, "nobody", "\"nobody\"");
  ExpectRefused(PrepareClassify, "regress", "at least one of \"classes\" or \"scores\"");
  ExpectRefused(PrepareClassify, "three", "{classes, more, scores}");
  ExpectRefused(PrepareClassify, "two_inputs", "Expected one input Tensor");
  ExpectRefused(PrepareClassify, "other_input", "{text}");
  EXPECT_TRUE(servable_.runs.empty());
}

TEST_F(ClassifyTest, AnInputThatTakesNoStringsIsRefused) {
  servable_.Add("numbers", {"classes"}, {}).inputs[0].dtype = tensor::dtype::kFloat;
  ExpectRefused(PrepareClassify, "numbers", "and the request's examples are");
}

TEST_F(ClassifyTest, TheMethodNameIsCheckedIfRequired) {
  const auto answer = StringTensor({"x", "y"}, {2, 1});
  servable_.Add("loose", {"classes"}, {answer}).method_name = "tensorflow/serving/predict";
  tensor::Signature& wrong = servable_.Add("wrong", {"classes"}, {answer});
  wrong.method_name = "tensorflow/serving/predict";
  wrong.has_checked_method_name = true;
  tensor::Signature& right = servable_.Add("right", {"classes"}, {answer});
  right.method_name = "tensorflow/serving/classify";
  right.has_checked_method_name = true;
  EXPECT_TRUE(Ask(PrepareClassify, "loose").ok());
  EXPECT_TRUE(Ask(PrepareClassify, "right").ok());
  ExpectRefused(PrepareClassify, "wrong", "Was: tensorflow/serving/predict");
}

TEST_F(ClassifyTest, OutputsOfAnotherDtypeOrShapeAreRefused) {
  servable_.Add("dtype", {"classes"}, {FloatTensor({1, 2}, {2, 1})});
  servable_.Add("rank", {"classes"}, {StringTensor({"x", "y"}, {2})});
  servable_.Add("batch", {"scores"}, {FloatTensor({1, 2, 3}, {3, 1})});
  servable_.Add("columns", {"classes", "scores"},
                {StringTensor({"x", "y"}, {2, 1}), FloatTensor({1, 2, 3, 4}, {2, 2})});
  ExpectRefused(PrepareClassify, "dtype", "[batch_size num_classes]");
  ExpectRefused(PrepareClassify, "rank", "[batch_size num_classes]");
  ExpectRefused(PrepareClassify, "batch", "Expected scores Tensor");
  ExpectRefused(PrepareClassify, "columns", "should match in dim_size(1). Got 1 vs. 2");
}

TEST_F(ClassifyTest, EmptyInputIsRefusedAndGraphErrorsAreForwarded) {
  servable_.Add("serving_default", {"classes"}, {StringTensor({"x", "y"}, {2, 1})});
  EXPECT_EQ(Ask(PrepareClassify, "", ExampleListInput({})).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(servable_.runs.empty());
  servable_.fails_with = base::NotFound("a table");
  EXPECT_EQ(Ask(PrepareClassify, "").status().code(), Code::kNotFound);
}

TEST_F(RegressTest, ReturnsANumberPerExampleInEitherShape) {
  servable_.Add("serving_default", {"outputs"}, {FloatTensor({0, 0.5F}, {2})});
  servable_.Add("column", {"outputs"}, {FloatTensor({0, 0.5F}, {2, 1})});
  const WireMessage result =
      WireMessage().Message(1, WireMessage()).Message(1, WireMessage().Fixed32(1, kHalfBits));
  for (const char* const name : {"serving_default", "column"}) {
    EXPECT_EQ(Ask(PrepareRegress, name).value(),
              WireMessage().Message(1, result).Message(2, ModelSpecMessage("m", 7, name)).bytes());
  }
}

TEST_F(RegressTest, AnotherSignatureOrOutputIsRefused) {
  servable_.Add("classify", {"classes"}, {});
  servable_.Add("two", {"more", "outputs"}, {});
  servable_.Add("dtype", {"outputs"}, {StringTensor({"x", "y"}, {2})});
  servable_.Add("wide", {"outputs"}, {FloatTensor({1, 2, 3, 4}, {2, 2})});
  servable_.Add("scalar", {"outputs"}, {FloatTensor({1}, {})});
  servable_.Add("batch", {"outputs"}, {FloatTensor({1}, {1})});
  ExpectRefused(PrepareRegress, "classify", "Expected one output Tensor, \"outputs\"");
  ExpectRefused(PrepareRegress, "two", "{more, outputs}");
  for (const char* const name : {"dtype", "wide", "scalar", "batch"}) {
    ExpectRefused(PrepareRegress, name, "either [batch_size] or [batch_size, 1]");
  }
}

}  // namespace
}  // namespace millpond::inference
