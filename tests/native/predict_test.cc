#include "native/inference/predict.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/doubling_servable.h"
#include "tests/native/predict_messages.h"
#include "tests/native/tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using base::Status;
using testing::DoublingServable;
using testing::InputMessage;
using testing::IsSame;
using testing::ModelSpecMessage;
using testing::ParseTensor;
using testing::PredictMessage;
using testing::PredictResponse;
using testing::SegmentedBytes;
using testing::TensorBytes;
using testing::Vector;
using testing::WireMessage;

class PredictTest : public ::testing::Test {
 protected:
  Status Predict(const std::string& bytes, PredictResponse* response,
                 const tensor::RunContext& run = {}) const {
    const SegmentedBytes segmented(bytes, {bytes.size() / 3});
    PredictRequest request;
    MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(segmented.reader(), &request));
    PredictReply reply;
    MILLPOND_RETURN_IF_ERROR(inference::Predict(servable_, request, run, &reply));
    const auto encoded = EncodePredictReply(reply, {});
    if (!encoded.ok()) return encoded.status();
    *response = testing::ParsePredictResponse(std::string(encoded.value().view()));
    return response->parses ? Status() : base::Internal("the reply does not parse");
  }

  Status MakeCallable(const std::string& bytes) const {
    const SegmentedBytes segmented(bytes);
    PredictRequest request;
    MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(segmented.reader(), &request));
    return inference::MakeCallable(servable_, request);
  }

  void ExpectRefused(const std::string& bytes, Code code, const std::string& message) const {
    PredictResponse response;
    const int before_count = servable_.run_count();
    const Status refused = Predict(bytes, &response);
    EXPECT_EQ(refused.code(), code);
    EXPECT_EQ(refused.message(), message);
    EXPECT_EQ(servable_.run_count(), before_count);
  }

  const DoublingServable servable_;
  const std::string x_ = TensorBytes(Vector<float>({1, 2.5}));
};

TEST_F(PredictTest, ReturnsAllOutputsWithVersionAndSignature) {
  PredictResponse response;
  ASSERT_TRUE(Predict(PredictMessage(ModelSpecMessage("m"), {{"x", x_}}), &response).ok());
  EXPECT_EQ(response.model_name, "m");
  EXPECT_EQ(response.version, 7);
  EXPECT_EQ(response.signature_name, "serving_default");
  ASSERT_EQ(response.outputs.size(), 2);
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("x_back")), Vector<float>({1, 2.5})));
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("y")), Vector<float>({2, 5})));
}

TEST_F(PredictTest, AnswersOnlyTheOutputsOfTheFilter) {
  PredictResponse response;
  ASSERT_TRUE(Predict(PredictMessage(ModelSpecMessage("m"), {{"x", x_}}, {"y"}), &response).ok());
  ASSERT_EQ(response.outputs.size(), 1);
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("y")), Vector<float>({2, 5})));
}

TEST_F(PredictTest, ReorderedFilterReturnsTheRightTensors) {
  PredictResponse response;
  const std::string bytes = PredictMessage(ModelSpecMessage("m"), {{"x", x_}}, {"y", "x_back"});
  ASSERT_TRUE(Predict(bytes, &response).ok());
  ASSERT_EQ(response.outputs.size(), 2);
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("x_back")), Vector<float>({1, 2.5})));
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("y")), Vector<float>({2, 5})));
}

TEST_F(PredictTest, MakeCallableReadiesRequestedOutputsAndRunsNothing) {
  ASSERT_TRUE(MakeCallable(PredictMessage(ModelSpecMessage("m"), {}, {"y"})).ok());
  ASSERT_TRUE(MakeCallable(PredictMessage(ModelSpecMessage("m"), {})).ok());
  ASSERT_EQ(servable_.made().size(), 2);
  EXPECT_FALSE(servable_.made()[0].Contains(0));
  EXPECT_TRUE(servable_.made()[0].Contains(1));
  EXPECT_TRUE(servable_.made()[1].IsAll());
  EXPECT_EQ(servable_.run_count(), 0);
}

TEST_F(PredictTest, MakeCallableRefusesSignatureAndFilterAsPredictDoes) {
  EXPECT_EQ(MakeCallable(PredictMessage(ModelSpecMessage("m", {}, "classify"), {})).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(MakeCallable(PredictMessage(ModelSpecMessage("m"), {}, {"q"})).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(servable_.made().empty());
}

TEST_F(PredictTest, AFilterThatNamesNothingOrOneOutputTwiceIsRefused) {
  ExpectRefused(
      PredictMessage(ModelSpecMessage("m"), {{"x", x_}}, {"y", "q"}), Code::kInvalidArgument,
      "output_filter 'q' is not an output of signature 'serving_default', which has {x_back, y}");
  ExpectRefused(
      PredictMessage(ModelSpecMessage("m"), {{"x", x_}}, {"y", "y"}), Code::kInvalidArgument,
      "output_filter 'y' is named twice for signature 'serving_default', which has {x_back, y}");
}

TEST_F(PredictTest, UnknownSignatureIsRefusedWithTheKnownOnes) {
  ExpectRefused(PredictMessage(ModelSpecMessage("m", {}, "classify"), {{"x", x_}}),
                Code::kFailedPrecondition,
                "Serving signature key \"classify\" not found; signatures of m version 7: "
                "serving_default");
}

TEST_F(PredictTest, MissingExtraAndMisnamedInputsAreNamed) {
  constexpr char kDiffer[] = "inputs do not match signature 'serving_default'. ";
  ExpectRefused(PredictMessage(ModelSpecMessage("m"), {}), Code::kInvalidArgument,
                std::string(kDiffer) + "Missing but required: {x}.");
  ExpectRefused(PredictMessage(ModelSpecMessage("m"), {{"x", x_}, {"a", x_}, {"b", x_}}),
                Code::kInvalidArgument, std::string(kDiffer) + "Sent extra: {a, b}.");
  ExpectRefused(PredictMessage(ModelSpecMessage("m"), {{"X", x_}}), Code::kInvalidArgument,
                std::string(kDiffer) + "Sent extra: {X}. Missing but required: {x}.");
}

TEST_F(PredictTest, OfAnInputSentTwiceTheLastCounts) {
  const std::string bytes = WireMessage()
                                .Message(1, ModelSpecMessage("m"))
                                .Message(2, InputMessage("x", TensorBytes(Vector<float>({8, 9}))))
                                .Message(2, InputMessage("x", x_))
                                .bytes();
  PredictResponse response;
  ASSERT_TRUE(Predict(bytes, &response).ok());
  EXPECT_TRUE(IsSame(ParseTensor(response.outputs.at("y")), Vector<float>({2, 5})));
}

TEST_F(PredictTest, ManyExtraInputsAreNamedFirstAndCounted) {
  WireMessage request;
  request.Message(1, ModelSpecMessage("m"));
  std::string listed;
  for (int i = 0; i < 5'000; ++i) {
    request.Message(2, InputMessage("e" + std::to_string(i), x_));
    if (i < 20) listed += "e" + std::to_string(i) + ", ";
  }
  ExpectRefused(request.bytes(), Code::kInvalidArgument,
                "inputs do not match signature 'serving_default'. Sent extra: {" + listed +
                    "and 4980 more}. Missing but required: {x}.");
}

TEST_F(PredictTest, AnInputOfAnotherDtypeIsRefusedWithBoth) {
  ExpectRefused(PredictMessage(ModelSpecMessage("m"), {{"x", TensorBytes(Vector<double>({1}))}}),
                Code::kInvalidArgument,
                "input 'x': expected float32[?], got float64[1]; signature 'serving_default'");
}

// Runs a Predict of the scalar x = 1, where x is float32[?].
Status PredictScalar(const servable::Servable& servable, PredictReply* reply) {
  const std::string message =
      PredictMessage(ModelSpecMessage("m"), {{"x", TensorBytes(testing::Scalar<float>(1))}});
  const SegmentedBytes segmented(message);
  PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(segmented.reader(), &request));
  return inference::Predict(servable, request, {}, reply);
}

TEST_F(PredictTest, AnInputOfAnotherShapeIsTheModelsToTake) {
  PredictReply reply;
  ASSERT_TRUE(PredictScalar(servable_, &reply).ok());
  EXPECT_TRUE(IsSame(reply.tensors.storage().tensors[1], testing::Scalar<float>(2)));
}

TEST_F(PredictTest, AnInputOfAnotherShapeIsRefusedIfShapesAreChecked) {
  const DoublingServable strict({}, /*has_checked_shapes=*/true);
  PredictReply reply;
  const Status refused = PredictScalar(strict, &reply);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "input 'x': expected float32[?], got float32[]; signature 'serving_default'");
  EXPECT_EQ(strict.run_count(), 0);
}

TEST_F(PredictTest, AKernelThatRefusesAShapeIsTheRequestsFault) {
  for (const Code code : {Code::kInvalidArgument, Code::kInternal, Code::kUnknown,
                          Code::kOutOfRange, Code::kUnimplemented, Code::kAborted}) {
    const DoublingServable refusing(
        [&](const tensor::RunContext&) { return Status(code, "rank 0"); });
    PredictReply reply;
    const Status refused = PredictScalar(refusing, &reply);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.message(),
              "input 'x' is float32[], signature 'serving_default' names float32[?], and the model "
              "does not take it: rank 0");
  }
}

TEST_F(PredictTest, AnErrorThatNoShapeExplainsKeepsItsCode) {
  for (const Code code : {Code::kFailedPrecondition, Code::kDeadlineExceeded, Code::kCancelled,
                          Code::kResourceExhausted, Code::kDataLoss, Code::kUnavailable}) {
    const DoublingServable failing(
        [&](const tensor::RunContext&) { return Status(code, "of mine"); });
    PredictReply reply;
    const Status failed = PredictScalar(failing, &reply);
    EXPECT_EQ(failed.code(), code);
    EXPECT_EQ(failed.message(), "of mine");
  }
}

TEST_F(PredictTest, UnparsableTensorIsRefusedByItsInputName) {
  const std::string bytes =
      WireMessage().Message(1, ModelSpecMessage("m")).Message(2, InputMessage("x", "\xff")).bytes();
  ExpectRefused(bytes, Code::kInvalidArgument,
                "input 'x': its bytes are not a TensorProto; signature 'serving_default'");
}

TEST_F(PredictTest, AnInputWithoutAValueIsRefused) {
  const std::string bytes = WireMessage()
                                .Message(1, ModelSpecMessage("m"))
                                .Message(2, WireMessage().Bytes(1, "x"))
                                .bytes();
  PredictResponse response;
  EXPECT_EQ(Predict(bytes, &response).code(), Code::kInvalidArgument);
}

TEST_F(PredictTest, ErrorOfTheRunIsReturnedAndItSeesTheContext) {
  int64_t seen_deadline_ns = 0;
  const DoublingServable failing([&](const tensor::RunContext& run) {
    seen_deadline_ns = run.deadline_ns;
    return Status{Code::kOutOfRange, "indices[0] = 9 is not in [0, 3)"};
  });
  const std::string bytes = PredictMessage(ModelSpecMessage("m"), {{"x", x_}});
  const SegmentedBytes segmented(bytes);
  PredictRequest request;
  ASSERT_TRUE(DecodePredictRequest(segmented.reader(), &request).ok());
  tensor::RunContext run;
  run.deadline_ns = 123;
  PredictReply reply;
  const Status failed = inference::Predict(failing, request, run, &reply);
  EXPECT_EQ(failed.code(), Code::kOutOfRange);
  EXPECT_EQ(failed.message(), "indices[0] = 9 is not in [0, 3)");
  EXPECT_EQ(seen_deadline_ns, 123);
}

}  // namespace
}  // namespace millpond::inference
