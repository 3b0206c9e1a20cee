#include "native/rest/tf_example_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "native/rest/rest_methods.h"
#include "tests/native/answer_alone.h"
#include "tests/native/plain_servable.h"
#include "tests/native/wire_message.h"

namespace millpond::rest {
namespace {

using base::Code;
using base::Status;
using testing::PlainServable;
using testing::Tensors;
using testing::WireMessage;
namespace dtype = tensor::dtype;

// The bytes of tensorflow.Example, written by hand.
WireMessage Feature(const std::string& name, int kind, const WireMessage& list) {
  return WireMessage().Message(
      1, WireMessage().Bytes(1, name).Message(2, WireMessage().Message(kind, list)));
}
WireMessage Texts(const std::vector<std::string>& values) {
  WireMessage list;
  for (const std::string& value : values) list.Bytes(1, value);
  return list;
}
WireMessage FloatList(const std::vector<float>& values) {
  WireMessage packed;
  for (const float value : values) packed.RawValue(value);
  return WireMessage().Message(1, packed);
}
WireMessage Integers(const std::vector<int64_t>& values) {
  WireMessage packed;
  for (const int64_t value : values) packed.RawVarint(static_cast<uint64_t>(value));
  return WireMessage().Message(1, packed);
}
std::string Example(const std::vector<WireMessage>& features) {
  WireMessage all;
  for (const WireMessage& feature : features) all.Raw(feature.bytes());
  return WireMessage().Message(1, all).bytes();
}

using Examples = std::vector<std::string>;

Examples Read(const std::string& body) {
  const std::vector<char> bytes(body.begin(), body.end());
  ExampleBody read;
  const Status status = ReadExampleBody({bytes.data(), bytes.size()}, &read);
  if (!status.ok()) return {std::string(base::CodeName(status.code())) + ": " + status.message()};
  return read.examples.storage().tensors[0].strings;
}

std::string ReadOne(const std::string& features) {
  return Read(R"({"examples": [)" + features + "]}").at(0);
}

TEST(ExampleBody, FeaturesHaveTheKindOfTheirValues) {
  EXPECT_EQ(ReadOne(R"({"a": "x"})"), Example({Feature("a", 1, Texts({"x"}))}));
  EXPECT_EQ(ReadOne(R"({"a": ["x", "", {"b64": "/w=="}]})"),
            Example({Feature("a", 1, Texts({"x", "", "\xff"}))}));
  EXPECT_EQ(ReadOne(R"({"a": 1.5})"), Example({Feature("a", 2, FloatList({1.5F}))}));
  EXPECT_EQ(ReadOne(R"({"a": [1.0, -2e3, Infinity]})"),
            Example({Feature("a", 2, FloatList({1, -2000, INFINITY}))}));
  EXPECT_EQ(ReadOne(R"({"a": [1, -9223372036854775808, true, false]})"),
            Example({Feature("a", 3, Integers({1, INT64_MIN, 1, 0}))}));
  EXPECT_EQ(ReadOne(R"({"a": 1, "b": "y"})"),
            Example({Feature("a", 3, Integers({1})), Feature("b", 1, Texts({"y"}))}));
}

TEST(ExampleBody, AFeatureWithoutValuesIsOneWithoutAKind) {
  EXPECT_EQ(ReadOne(R"({"a": []})"),
            Example({WireMessage().Message(1, WireMessage().Bytes(1, "a").Bytes(2, ""))}));
  EXPECT_EQ(ReadOne("{}"), Example({}));
}

TEST(ExampleBody, ContextPrecedesEachExampleFromAnyPlace) {
  const std::string context = Example({Feature("c", 3, Integers({5}))});
  const Examples expected{context + Example({Feature("a", 3, Integers({1}))}),
                          context + Example({Feature("a", 3, Integers({2}))})};
  EXPECT_EQ(Read(R"({"context": {"c": 5}, "examples": [{"a": 1}, {"a": 2}]})"), expected);
  EXPECT_EQ(Read(R"({"examples": [{"a": 1}, {"a": 2}], "more": [], "context": {"c": 5}})"),
            expected);
}

TEST(ExampleBody, MalformedExamplesAreRefusedWithTheFeature) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"examples": [{"a": [1, 2.5]}]})",
       "Unexpected element type in feature: a expecting type: int64, got float; send values of one "
       "kind (1.0 is a float, 1 an int64)"},
      {R"({"examples": [{"a": ["x", 1]}]})",
       "Unexpected element type in feature: a expecting type: bytes, got int64; send values of one "
       "kind (1.0 is a float, 1 an int64)"},
      {R"({"examples": [{"a": [[1]]}]})", "Feature: a has a list in a list"},
      {R"({"examples": [{"a": null}]})",
       "Feature: a has null, which is not a number, string or boolean"},
      {R"({"examples": [{"a": 18446744073709551615}]})",
       "Feature: a has 18446744073709551615, which is out of the range of int64"},
      {R"({"examples": [{"a": 1e39}]})",
       "Feature: a has 1e39, which is out of the range of float32"},
      {R"({"examples": [{"a": {"b64": "!"}}]})", "Feature: a has invalid base64"},
      {R"({"examples": [{"a": {}}]})", "Feature: a has an object without \"b64\""},
      {R"({"examples": [{"a": {"b64": "", "c": 1}}]})",
       "Feature: a has an object with more keys than \"b64\""},
      {R"({"examples": [{"a": 1, "b": 2, "a": 3}]})",
       "Feature: a appears twice in one example; send it once"},
      {R"({"context": {"a": 1, "\u0061": 1}, "examples": [{}]})",
       "Feature: a appears twice in one example; send it once"},
      {R"({"examples": [1]})", "an example is 1; it has to be an object of features"},
      {R"({"examples": {}})", "'examples' is an object; it takes a list of objects"},
      {R"({"examples": []})", "'examples' is an empty list; send at least one example"},
      {R"({"context": {}})", "Missing 'examples' key"},
      {R"({"examples": [{}], "examples": [{}]})", "duplicate key 'examples'; send it once"},
      {R"({"signature_name": 1, "examples": [{}]})", "'signature_name' is 1; it takes a string"},
      {R"([])", "JSON Parse error: expected an object, got a list at offset: 0"},
      {R"({"examples": [{}]}})",
       "JSON Parse error: expected nothing after the object, got } at offset: 18"},
  };
  for (const auto& [body, message] : cases) {
    EXPECT_EQ(Read(body).at(0), std::string("INVALID_ARGUMENT: ") + message) << body;
  }
}

TEST(ExampleBody, OversizedContextIsRefusedBeforeItsCopy) {
  std::string body =
      R"({"context": {"c": ")" + std::string(1'000'000, 'x') + R"("}, "examples": [{})";
  for (int i = 0; i < 3'000; ++i) body += ",{}";
  EXPECT_EQ(Read(body + "]}").at(0).substr(0, 18), "RESOURCE_EXHAUSTED");
}

tensor::Signature ExampleSignature(const std::string& name,
                                   std::vector<tensor::TensorSpec> outputs) {
  tensor::Signature signature;
  signature.name = name;
  signature.inputs = {testing::Spec("inputs", dtype::kString, {-1})};
  signature.outputs = std::move(outputs);
  return signature;
}

class RestExamplesTest : public ::testing::Test {
 protected:
  using Method = Status (*)(const servable::Servable&, std::string_view, PreparedRest*);

  Status Answer(Method prepare, std::string_view body) {
    return testing::AnswerAlone(
        [&](PreparedRest* prepared) { return prepare(servable_, body, prepared); }, &reply_);
  }

  PlainServable servable_{
      {ExampleSignature("serving_default", {testing::AnyShapeSpec("classes", dtype::kString),
                                            testing::AnyShapeSpec("scores", dtype::kFloat)}),
       ExampleSignature("regress", {testing::AnyShapeSpec("outputs", dtype::kFloat)})}};
  RestReply reply_;
};

TEST_F(RestExamplesTest, ClassifyAnswersLabelsAndScoresOfEachExample) {
  servable_.answer = [](const Tensors&, Tensors* outputs) {
    *outputs = {testing::StringTensor({2, 2}, {"a", "b\"", "c", "\xff"}),
                testing::NumberTensor<float>(dtype::kFloat, {2, 2}, {1, 0.25F, NAN, -1e-20F})};
    return Status();
  };
  const Status status = Answer(PrepareClassify, R"({"examples": [{"a": 1}, {"a": 2}]})");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(
      reply_.body.view(),
      R"({"results": [[["a", 1.0], ["b\"", 0.25]], [["c", NaN], [{"b64": "/w=="}, -1e-20]]]})");
  EXPECT_EQ(servable_.seen().at(0).strings.size(), 2);
}

TEST_F(RestExamplesTest, RegressAnswersANumberForEachExample) {
  servable_.answer = [](const Tensors&, Tensors* outputs) {
    *outputs = {testing::NumberTensor<float>(dtype::kFloat, {2, 1}, {1, 2.5F})};
    return Status();
  };
  const Status status =
      Answer(PrepareRegress, R"({"signature_name": "regress", "examples": [{"a": 1}, {"a": 2}]})");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(reply_.body.view(), R"({"results": [1.0, 2.5]})");
}

TEST_F(RestExamplesTest, ASignatureThatIsNotForTheMethodIsRefused) {
  const std::string body = R"({"signature_name": "regress", "examples": [{"a": 1}]})";
  EXPECT_EQ(Answer(PrepareClassify, body).code(), Code::kInvalidArgument);
  EXPECT_EQ(Answer(PrepareRegress, R"({"examples": [{"a": 1}]})").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::rest
