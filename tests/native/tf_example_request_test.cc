#include "native/inference/tf_example_request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/native/predict_messages.h"
#include "tests/native/tf_example_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::ContextInput;
using testing::ExampleListInput;
using testing::ExampleMessage;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::WireMessage;
using Strings = std::vector<std::string>;

// Returns the tensor of an Input, or its error.
base::StatusOr<Strings> TensorOf(const WireMessage& input, const std::vector<size_t>& cuts = {}) {
  const SegmentedBytes segmented(input.bytes(), cuts);
  ExampleInput examples;
  if (!examples.Read(segmented.reader())) return base::DataLoss("does not parse");
  tensor::TensorList tensors;
  MILLPOND_RETURN_IF_ERROR(examples.MakeTensor(&tensors));
  EXPECT_EQ(tensors.storage().tensors[0].dims, std::vector<int64_t>{examples.example_count()});
  return tensors.storage().tensors[0].strings;
}

TEST(ExampleInputTest, EachExampleIsAStringOfItsOwnBytes) {
  EXPECT_EQ(TensorOf(ExampleListInput({"one", "", "three"})).value(),
            (Strings{"one", "", "three"}));
}

TEST(ExampleInputTest, ContextPrecedesExamplesSoThatTheirFeaturesWin) {
  EXPECT_EQ(TensorOf(ContextInput("context-", {"one", "", "three"})).value(),
            (Strings{"context-one", "context-", "context-three"}));
}

TEST(ExampleInputTest, AContextCountsWhereverItStandsInTheList) {
  const WireMessage list = WireMessage().Bytes(1, "a").Bytes(2, "c1").Bytes(1, "b").Bytes(2, "c2");
  EXPECT_EQ(TensorOf(WireMessage().Message(2, list)).value(), (Strings{"c1c2a", "c1c2b"}));
}

TEST(ExampleInputTest, AListWithoutContextHasNoField2) {
  const WireMessage list = WireMessage().Bytes(1, "a").Bytes(2, "not a context");
  EXPECT_EQ(TensorOf(WireMessage().Message(1, list)).value(), Strings{"a"});
}

TEST(ExampleInputTest, OfTwoKindsTheLastCountsAndOfOneKindTwoAreMerged) {
  const std::string plain = ExampleListInput({"a"}).bytes();
  const std::string contextual = ContextInput("c", {"b"}).bytes();
  EXPECT_EQ(TensorOf(WireMessage().Raw(contextual).Raw(plain)).value(), Strings{"a"});
  EXPECT_EQ(TensorOf(WireMessage().Raw(plain).Raw(contextual)).value(), Strings{"cb"});
  EXPECT_EQ(TensorOf(WireMessage().Raw(plain).Raw(plain)).value(), (Strings{"a", "a"}));
  EXPECT_EQ(TensorOf(WireMessage().Raw(contextual).Raw(contextual)).value(),
            (Strings{"ccb", "ccb"}));
}

TEST(ExampleInputTest, AnEmptyInputIsRefusedHoweverItIsEmpty) {
  for (const WireMessage& empty :
       {WireMessage(), ExampleListInput({}), ContextInput("context", {})}) {
    const auto refused = TensorOf(empty);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("Input is empty"), std::string::npos);
  }
}

TEST(ExampleInputTest, UnknownFieldsAreSkippedAndOtherBytesDoNotParse) {
  const std::string list = ExampleListInput({"a"}).bytes();
  EXPECT_EQ(TensorOf(WireMessage().Varint(9, 1).Raw(list).Bytes(7, "x")).value(), Strings{"a"});
  EXPECT_EQ(TensorOf(WireMessage().Raw("\xff")).status().code(), Code::kDataLoss);
  EXPECT_EQ(TensorOf(WireMessage().Bytes(1, "\x0a\x05")).status().code(), Code::kDataLoss);
}

// A context of 1 MiB and 4,096 examples of no bytes are 1 MiB on the wire.
TEST(ExampleInputTest, ContextRepeatedBeyondATensorIsRefusedFirst) {
  const auto refused = TensorOf(ContextInput(std::string(size_t{1} << 20U, 'c'), Strings(4'096)));
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
}

TEST(ExampleInputTest, CutsBetweenBytesMakeNoDifference) {
  const WireMessage input = ContextInput("context", {"first", "second"});
  for (size_t cut = 0; cut <= input.bytes().size(); ++cut) {
    EXPECT_EQ(TensorOf(input, {cut}).value(), (Strings{"contextfirst", "contextsecond"}));
  }
}

TEST(ExampleRequestTest, HasASpecAndAnInput) {
  const std::string bytes =
      ExampleMessage(ModelSpecMessage("m", 3, "sign"), ExampleListInput({"a", "b"}));
  const SegmentedBytes segmented(bytes, {bytes.size() / 2});
  ExampleRequest request;
  ASSERT_TRUE(DecodeExampleRequest(segmented.reader(), "RegressionRequest", &request).ok());
  EXPECT_EQ(request.model_spec->name, "m");
  EXPECT_EQ(request.model_spec->version, 3);
  EXPECT_EQ(request.model_spec->signature_name, "sign");
  EXPECT_EQ(request.input.example_count(), 2);
}

TEST(ExampleRequestTest, OtherBytesAreRefusedByTheMessagesName) {
  const SegmentedBytes segmented("\xff\xff");
  ExampleRequest request;
  const base::Status refused =
      DecodeExampleRequest(segmented.reader(), "RegressionRequest", &request);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("tensorflow.serving.RegressionRequest"), std::string::npos);
}

}  // namespace
}  // namespace millpond::inference
