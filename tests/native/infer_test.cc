#include "native/inference/infer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "native/inference/raw_elements.h"
#include "tests/native/answer_alone.h"
#include "tests/native/echo_servable.h"
#include "tests/native/infer_messages.h"
#include "tests/native/plain_servable.h"

namespace millpond::inference {
namespace {

using base::Code;
using base::Status;
using testing::RawOf;
using testing::SegmentedBytes;

// Raw contents, one block for each input.
class BlockElements final : public InferElements {
 public:
  explicit BlockElements(const std::vector<std::string>& blocks) : blocks_(blocks) {}
  Status Read(size_t input, int dtype, const std::vector<int64_t>& dims, int64_t element_count,
              size_t index, tensor::TensorList* tensors) const override {
    const SegmentedBytes segmented(blocks_[input], {blocks_[input].size() / 2});
    return ReadRawElements(segmented.reader(), dtype, dims, element_count, index, tensors);
  }

 private:
  const std::vector<std::string>& blocks_;
};

class InferTest : public ::testing::Test {
 protected:
  InferTest() {
    request_.model_spec.name = "echo";
    request_.id = "r1";
    request_.inputs = {{"words", "BYTES", {2}}, {"rows", "FP32", {1, 3}}};
  }

  Status Infer() {
    reply_ = {};
    return testing::AnswerInfer(servable_, request_, BlockElements(blocks_), &reply_);
  }
  void ExpectRefused(Code code, const std::string& in_message) {
    const int before_count = servable_.run_count();
    const Status refused = Infer();
    EXPECT_EQ(refused.code(), code);
    EXPECT_NE(refused.message().find(in_message), std::string::npos) << refused.message();
    EXPECT_EQ(servable_.run_count(), before_count);
  }

  const testing::EchoServable servable_;
  InferRequest request_;
  std::vector<std::string> blocks_{RawOf(std::vector<std::string>{"", "two"}),
                                   RawOf<float>({1, 2, 3})};
  InferReply reply_;
};

TEST_F(InferTest, ReturnsOutputsInSignatureOrderWithVersionAndId) {
  ASSERT_TRUE(Infer().ok());
  EXPECT_EQ(reply_.model_name, "echo");
  EXPECT_EQ(reply_.version, 7);
  EXPECT_EQ(reply_.id, "r1");
  ASSERT_EQ(reply_.outputs.size(), 2);
  EXPECT_EQ(*reply_.outputs[0].name, "a");
  EXPECT_EQ(reply_.outputs[0].datatype, "FP32");
  EXPECT_EQ(reply_.tensors.storage().tensors[0].bytes, RawOf<float>({1, 2, 3}));
  EXPECT_EQ(*reply_.outputs[1].name, "b");
  EXPECT_EQ(reply_.tensors.storage().tensors[1].strings, (std::vector<std::string>{"", "two"}));
}

TEST_F(InferTest, AnswersOnlyTheOutputsThatAreNamed) {
  request_.outputs = {"b"};
  ASSERT_TRUE(Infer().ok());
  ASSERT_EQ(reply_.outputs.size(), 1);
  EXPECT_EQ(*reply_.outputs[0].name, "b");
  EXPECT_EQ(reply_.outputs[0].tensor_index, 0);
}

TEST_F(InferTest, TheParameterSignatureNameSelectsAnotherSignature) {
  request_.parameters = {{"signature_name", "of_9"}};
  request_.inputs = {{"x", "INT64", {}}};
  blocks_ = {RawOf<int64_t>({-5})};
  ASSERT_TRUE(Infer().ok());
  EXPECT_EQ(reply_.tensors.storage().tensors[0].bytes, RawOf<int64_t>({-5}));
  request_.parameters = {{"signature_name", "q"}};
  ExpectRefused(Code::kFailedPrecondition, "\"q\" not found");
  request_.parameters = {{"signature_name", "", 3}};
  ExpectRefused(Code::kInvalidArgument, "it takes the name of a signature");
}

TEST(InferDefaults, AnInputThatIsNotSentHasItsDefault) {
  auto standard = std::make_shared<tensor::TensorList>();
  standard->Reset(1);
  standard->storage().tensors[0] = testing::NumberTensor<float>(tensor::dtype::kFloat, {}, {0.5});
  tensor::Signature signature;
  signature.name = "serving_default";
  signature.inputs = {testing::AnyShapeSpec("t", tensor::dtype::kFloat),
                      testing::AnyShapeSpec("x", tensor::dtype::kFloat)};
  signature.inputs[0].default_value = standard;
  signature.outputs = signature.inputs;
  testing::PlainServable servable({signature});
  InferRequest request;
  request.inputs = {{"x", "FP32", {1, 3}}};
  const std::vector<std::string> blocks{RawOf<float>({1, 2, 3})};
  InferReply reply;
  ASSERT_TRUE(testing::AnswerInfer(servable, request, BlockElements(blocks), &reply).ok());
  EXPECT_EQ(testing::NumbersOf<float>(servable.seen().at(0)), std::vector<float>{0.5});
  request.inputs = {{"t", "FP32", {1, 3}}};
  const Status refused = testing::AnswerInfer(servable, request, BlockElements(blocks), &reply);
  EXPECT_EQ(refused.message(),
            "inputs do not match signature 'serving_default'. Missing but required: {x}.");
}

TEST_F(InferTest, UnknownOrDuplicateInputsAreRefused) {
  request_.inputs[0].name = "sentences";
  ExpectRefused(Code::kInvalidArgument, "Sent extra: {sentences}. Missing but required: {words}.");
  request_.inputs[0].name = "rows";
  ExpectRefused(Code::kInvalidArgument, "duplicate input 'rows'");
  request_.inputs.clear();
  ExpectRefused(Code::kInvalidArgument, "{rows, words}");
}

TEST_F(InferTest, ADatatypeOrAShapeThatCannotBeIsRefused) {
  request_.inputs[1].datatype = "FP64";
  ExpectRefused(Code::kInvalidArgument, "input 'rows': expected float32[?,3], got float64[1,3]");
  request_.inputs[1].datatype = "float32";
  ExpectRefused(Code::kInvalidArgument, "unknown datatype 'float32'");
  request_.inputs[1] = {"rows", "FP32", {-1, 3}};
  ExpectRefused(Code::kInvalidArgument, "a dimension of size -1");
  request_.inputs[1] = {"rows", "FP32", {INT64_MAX, 3}};
  ExpectRefused(Code::kInvalidArgument, "more than 2^63 elements");
}

TEST_F(InferTest, AShapeThatTheSignatureDoesNotNameIsTheModelsToTake) {
  request_.inputs[1] = {"rows", "FP32", {3}};
  ASSERT_TRUE(Infer().ok());
  EXPECT_EQ(reply_.tensors.storage().tensors[0].dims, (std::vector<int64_t>{3}));
}

TEST_F(InferTest, ContentsContradictingTheShapeAllocateNothing) {
  request_.inputs[1].dims = {1'000'000'000'000, 3};
  ExpectRefused(Code::kInvalidArgument, "hold 12 bytes");
  request_.inputs[1].dims = {1, 3};
  request_.inputs[0].dims = {1'000'000'000'000};
  ExpectRefused(Code::kInvalidArgument, "4 for each element's length");
}

TEST_F(InferTest, StringsThatEndEarlyOrGoOnAreRefused) {
  const std::string whole = blocks_[0];
  blocks_[0] = whole + "x";
  ExpectRefused(Code::kInvalidArgument, "wrong from element 2 on");
  blocks_[0] = whole.substr(0, whole.size() - 1);
  ExpectRefused(Code::kInvalidArgument, "wrong from element 1 on");
  blocks_[0] = std::string("\xff\xff\xff\xff", 4) + whole;
  ExpectRefused(Code::kInvalidArgument, "wrong from element 0 on");
}

TEST_F(InferTest, BoolsOtherThanZeroAndOneBecomeOne) {
  request_.parameters = {{"signature_name", "of_10"}};
  request_.inputs = {{"x", "BOOL", {3}}};
  blocks_ = {std::string("\x00\x01\xfe", 3)};
  ASSERT_TRUE(Infer().ok());
  EXPECT_EQ(reply_.tensors.storage().tensors[0].bytes, std::string("\x00\x01\x01", 3));
}

TEST_F(InferTest, ActiveUnsupportedParametersAreRefused) {
  request_.tensor_parameters = {{"shared_memory_region", "", 0}, {"classification", "", 0}};
  request_.parameters = {{"sequence_id", "", 0}, {"priority", "", 3}};
  EXPECT_TRUE(Infer().ok());
  request_.tensor_parameters[0].text = "region";
  ExpectRefused(Code::kUnimplemented, "'shared_memory_region'");
  request_.tensor_parameters = {{"classification", "", 3}};
  ExpectRefused(Code::kUnimplemented, "'classification'");
  request_.tensor_parameters.clear();
  request_.parameters[0].number = 1;
  ExpectRefused(Code::kUnimplemented, "'sequence_id'");
}

TEST_F(InferTest, OutputWithoutProtocolDatatypeIsRefusedUnrun) {
  request_.parameters = {{"signature_name", "complex"}};
  request_.inputs = {{"x", "FP32", {1}}};
  blocks_ = {RawOf<float>({1})};
  ExpectRefused(Code::kUnimplemented, "output 'x'");
}

TEST_F(InferTest, UnknownOutputsAreRefused) {
  request_.outputs = {"c"};
  ExpectRefused(Code::kInvalidArgument, "'c'");
  request_.outputs = {"a", "a"};
  ExpectRefused(Code::kInvalidArgument, "twice");
}

TEST(SetModelVersionTest, NothingIsTheDefaultANumberAVersionAndElseALabel) {
  ModelSpec spec;
  SetModelVersion("12", &spec);
  EXPECT_EQ(spec.version, 12);
  EXPECT_EQ(spec.version_label, std::nullopt);
  SetModelVersion("stable", &spec);
  EXPECT_EQ(spec.version, std::nullopt);
  EXPECT_EQ(spec.version_label, "stable");
  // An export may be numbered by the time in nanoseconds.
  SetModelVersion("1796022015288487000", &spec);
  EXPECT_EQ(spec.version, 1796022015288487000);
  SetModelVersion("00000000000000000000009223372036854775807", &spec);
  EXPECT_EQ(spec.version, INT64_MAX);
  EXPECT_EQ(spec.version_label, std::nullopt);
  SetModelVersion("9223372036854775808", &spec);
  EXPECT_EQ(spec.version, std::nullopt);
  EXPECT_EQ(spec.version_label, "9223372036854775808");
  // A version can never have this number: the text finds no label and is refused as one.
  SetModelVersion("99999999999999999999", &spec);
  EXPECT_EQ(spec.version_label, "99999999999999999999");
  SetModelVersion("", &spec);
  EXPECT_EQ(spec.version, std::nullopt);
  EXPECT_EQ(spec.version_label, std::nullopt);
}

}  // namespace
}  // namespace millpond::inference
