#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "native/rest/rest_methods.h"
#include "tests/native/answer_alone.h"
#include "tests/native/plain_servable.h"

namespace millpond::rest {
namespace {

using base::Code;
using base::Status;
using testing::AnyShapeSpec;
using testing::NumbersOf;
using testing::NumberTensor;
using testing::PlainServable;
using testing::Spec;
using testing::StringTensor;
using testing::Tensors;
namespace dtype = tensor::dtype;

using Dims = std::vector<int64_t>;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

// Signatures with outputs equal to their inputs.
tensor::Signature EchoOf(const std::string& name, const std::vector<tensor::TensorSpec>& specs) {
  tensor::Signature signature;
  signature.name = name;
  signature.inputs = specs;
  signature.outputs = specs;
  return signature;
}

// `spec` as an input with the default `value`.
tensor::TensorSpec WithDefault(tensor::TensorSpec spec, const testing::OpaqueTensor& value) {
  auto list = std::make_shared<tensor::TensorList>();
  list->Reset(1);
  list->storage().tensors[0] = value;
  spec.default_value = std::move(list);
  return spec;
}

class RestPredictTest : public ::testing::Test {
 protected:
  std::string Predict(const std::string& body) {
    // A block of its own size, so that AddressSanitizer sees a read past its end.
    const std::vector<char> bytes(body.begin(), body.end());
    RestReply reply;
    const Status status = testing::AnswerAlone(
        [&](PreparedRest* prepared) {
          return PreparePredict(servable_, {bytes.data(), bytes.size()}, prepared);
        },
        &reply);
    code_ = status.code();
    EXPECT_EQ(reply.content_type, "application/json");
    return status.ok() ? std::string(reply.body.view()) : status.message();
  }
  void ExpectRefused(const std::string& body, const std::string& message,
                     Code code = Code::kInvalidArgument) {
    EXPECT_EQ(Predict(body), message) << body;
    EXPECT_EQ(code_, code) << body;
  }
  const testing::OpaqueTensor& Seen(size_t index = 0) { return servable_.seen().at(index); }

  PlainServable servable_{{
      EchoOf("serving_default", {Spec("x", dtype::kFloat, {-1, 2})}),
      EchoOf("two", {Spec("a", dtype::kInt64, {-1}), Spec("b", dtype::kFloat, {-1, -1})}),
      EchoOf("any", {AnyShapeSpec("x", dtype::kInt64)}),
      EchoOf("text", {AnyShapeSpec("x", dtype::kString)}),
      EchoOf("text_bytes", {AnyShapeSpec("x_bytes", dtype::kString)}),
      EchoOf("bool", {AnyShapeSpec("x", dtype::kBool)}),
      EchoOf("int8", {AnyShapeSpec("x", dtype::kInt8)}),
      EchoOf("half", {AnyShapeSpec("x", dtype::kHalf)}),
      EchoOf("complex", {AnyShapeSpec("x", 8)}),
      EchoOf("nothing", {}),
      EchoOf("default", {WithDefault(AnyShapeSpec("t", dtype::kFloat),
                                     NumberTensor<float>(dtype::kFloat, {2}, {0.5, 0.25})),
                         AnyShapeSpec("x", dtype::kInt64)}),
      EchoOf("fixed", {Spec("x", dtype::kFloat, {-1, 2, 3})}),
  }};
  Code code_ = Code::kOk;
};

TEST_F(RestPredictTest, RowsOfTheOnlyInputAreItsFirstDimension) {
  EXPECT_EQ(Predict(R"({"instances": [[1, 2.5], [-3e1, NaN], [Infinity, -Infinity]]})"),
            R"({"predictions": [[1.0, 2.5], [-30.0, NaN], [Infinity, -Infinity]]})");
  EXPECT_EQ(Seen().dims, (Dims{3, 2}));
}

TEST_F(RestPredictTest, RowsOfTheOnlyInputMayNameIt) {
  EXPECT_EQ(Predict(R"({"instances": [{"x": [1, 2]}, {"x": [3, 4]}]})"),
            R"({"predictions": [[1.0, 2.0], [3.0, 4.0]]})");
}

TEST_F(RestPredictTest, ScalarRowsAreAVector) {
  EXPECT_EQ(Predict(R"({"signature_name": "any", "instances": [1, 2, 3]})"),
            R"({"predictions": [1, 2, 3]})");
  EXPECT_EQ(Seen().dims, Dims{3});
}

TEST_F(RestPredictTest, RowsOfSeveralInputsAreObjectsInAnyOrderOfKeys) {
  EXPECT_EQ(Predict(R"({"signature_name": "two",
                        "instances": [{"a": 1, "b": [1, 2]}, {"b": [3, 4], "a": 2}]})"),
            R"({"predictions": [{"a": 1, "b": [1.0, 2.0]}, {"a": 2, "b": [3.0, 4.0]}]})");
  EXPECT_EQ(NumbersOf<int64_t>(Seen(0)), (Ints{1, 2}));
  EXPECT_EQ(Seen(1).dims, (Dims{2, 2}));
}

TEST_F(RestPredictTest, ColumnsAreWholeTensorsBothWays) {
  EXPECT_EQ(Predict(R"({"inputs": [[1, 2]]})"), R"({"outputs": [[1.0, 2.0]]})");
  EXPECT_EQ(Predict(R"({"inputs": {"x": [[1, 2]]}})"), R"({"outputs": [[1.0, 2.0]]})");
  EXPECT_EQ(Predict(R"({"signature_name": "two", "inputs": {"b": [[1], [2], [3]], "a": [7]}})"),
            R"({"outputs": {"a": [7], "b": [[1.0], [2.0], [3.0]]}})");
  EXPECT_EQ(Predict(R"({"signature_name": "any", "inputs": 5})"), R"({"outputs": 5})");
  EXPECT_EQ(Seen().dims, Dims{});
}

TEST_F(RestPredictTest, AnInputThatIsNotSentHasItsDefault) {
  const Floats standard = {0.5, 0.25};
  for (const std::string values :
       {R"("inputs": {"x": [1, 2]})", R"("inputs": [1, 2])", R"("instances": [{"x": 1}, {"x": 2}])",
        R"("instances": [1, 2])"}) {
    Predict(R"({"signature_name": "default", )" + values + "}");
    ASSERT_EQ(code_, Code::kOk) << values;
    EXPECT_EQ(NumbersOf<float>(Seen(0)), standard) << values;
    EXPECT_EQ(Seen(0).dims, Dims{2}) << values;
    EXPECT_EQ(NumbersOf<int64_t>(Seen(1)), (Ints{1, 2})) << values;
  }
}

TEST_F(RestPredictTest, AnInputThatIsSentHasNoDefault) {
  Predict(R"({"signature_name": "default", "instances": [{"x": 1, "t": 3}, {"t": 4, "x": 2}]})");
  EXPECT_EQ(NumbersOf<float>(Seen(0)), (Floats{3, 4}));
  Predict(R"({"signature_name": "default", "inputs": {"x": [1, 2], "t": 7}})");
  EXPECT_EQ(NumbersOf<float>(Seen(0)), Floats{7});
}

TEST_F(RestPredictTest, RowsOfWhichSomeLackADefaultAreRefused) {
  ExpectRefused(
      R"({"signature_name": "default", "instances": [{"x": 1}, {"x": 2, "t": 4}]})",
      "instances[1] has the input 't', and a row before does not: send it in all rows, or in none "
      "for its default");
  ExpectRefused(
      R"({"signature_name": "default", "instances": [{"x": 1, "t": 4}, {"x": 2}]})",
      "instances[1]: inputs do not match signature 'default'. Missing but required: {t}.");
  ExpectRefused(
      R"({"signature_name": "default", "instances": [{"t": 4}]})",
      "instances[0]: inputs do not match signature 'default'. Missing but required: {x}.");
  ExpectRefused(R"({"signature_name": "default", "inputs": {"t": 4}})",
                "inputs do not match signature 'default'. Missing but required: {x}.");
}

TEST_F(RestPredictTest, TheSignatureMayBeNamedBehindTheValues) {
  EXPECT_EQ(Predict(R"({"instances": [1, 2], "signature_name": "any"})"),
            R"({"predictions": [1, 2]})");
  EXPECT_EQ(servable_.run_signature(), "any");
  EXPECT_EQ(Predict(R"({"instances": [[1, 2]], "signature_name": "serving_default"})"),
            R"({"predictions": [[1.0, 2.0]]})");
  ExpectRefused(R"({"instances": [1.5], "signature_name": "any"})",
                "input 'x' at [0]: 1.5 is not of expected type: int64");
  // Values that also fit the default signature are values of the named signature.
  EXPECT_EQ(Predict(R"({"instances": [[1, 2]], "signature_name": "any"})"),
            R"({"predictions": [[1, 2]]})");
}

TEST_F(RestPredictTest, UnknownKeysAreSkippedAndKnownOnesComeOnce) {
  EXPECT_EQ(Predict(R"({"id": {"x": [null, "]"]}, "instances": [[1, 2]], "more": -1.5e3})"),
            R"({"predictions": [[1.0, 2.0]]})");
  ExpectRefused(
      R"({"instances": [[1, 2]], "instances": [[1, 2]]})",
      "the body has 'instances' and 'inputs', or one of them twice; send one of them, once");
  ExpectRefused(
      R"({"instances": [[1, 2]], "inputs": [[1, 2]]})",
      "the body has 'instances' and 'inputs', or one of them twice; send one of them, once");
  ExpectRefused(R"({"signature_name": "any", "signature_name": "any", "inputs": 1})",
                "duplicate key 'signature_name'; send it once");
  ExpectRefused(R"({"instances": [{"x": [1, 2], "x": [1, 2]}]})",
                "duplicate input 'x' in one object; send it once");
  ExpectRefused(R"({"inputs": {"x": [[1, 2]], "x": [[1, 2]]}})",
                "duplicate input 'x' in one object; send it once");
}

TEST_F(RestPredictTest, MalformedBodiesAreRefused) {
  ExpectRefused("{}", "Missing 'inputs' or 'instances' key");
  ExpectRefused(R"({"signature_name": 5, "inputs": 1})",
                "'signature_name' is 5; it takes a string");
  ExpectRefused(R"({"instances": {"x": 1}})",
                "'instances' is an object; it takes a list with a value for each row");
  ExpectRefused(R"({"instances": []})", "'instances' is an empty list; send at least one row");
  ExpectRefused("[1]",
                "JSON Parse error: expected an object with \"instances\" or \"inputs\", got a "
                "list at offset: 0");
  ExpectRefused("",
                "JSON Parse error: expected an object with \"instances\" or \"inputs\", got the "
                "end at offset: 0");
  ExpectRefused(R"({"inputs": [[1, 2]]} x)",
                "JSON Parse error: expected nothing after the object, got x at offset: 21");
  ExpectRefused(R"({"inputs": [[1, 2})",
                "JSON Parse error: expected ',' or ']', got } at offset: 17");
  ExpectRefused(R"({"inputs": [[1, 2]], "signature_name": "none"})",
                "Serving signature key \"none\" not found; signatures of m version 7: any bool "
                "complex default fixed half int8 nothing serving_default text text_bytes two",
                Code::kFailedPrecondition);
}

TEST_F(RestPredictTest, MissingOrExtraNamesAreReported) {
  ExpectRefused(R"({"signature_name": "two", "instances": [{"a": 1, "b": [1]}, {"a": 1}]})",
                "instances[1]: inputs do not match signature 'two'. Missing but required: {b}.");
  ExpectRefused(
      R"({"signature_name": "two", "instances": [{"c": 1}]})",
      "inputs do not match signature 'two'. Sent extra: {c}. The signature has the inputs {a, b}.");
  ExpectRefused(R"({"signature_name": "two", "inputs": {"b": [[1]]}})",
                "inputs do not match signature 'two'. Missing but required: {a}.");
  ExpectRefused(R"({"signature_name": "two", "inputs": {"A": [1], "b": [[1]]}})",
                "inputs do not match signature 'two'. Sent extra: {A}. Missing but required: {a}.");
  ExpectRefused(R"({"signature_name": "two", "instances": [1]})",
                "'instances' has plain values, but signature 'two' has the inputs {a, b}: send "
                "objects with these keys");
  ExpectRefused(R"({"signature_name": "two", "inputs": [1]})",
                "'inputs' has plain values, but signature 'two' has the inputs {a, b}: send "
                "objects with these keys");
  ExpectRefused(R"({"instances": [{"x": [1, 2]}, [1, 2]]})",
                "instances[1] is a list, but the rows before are objects with the inputs' names as "
                "keys");
  ExpectRefused(R"({"instances": [[1, 2], {"x": [1, 2]}]})",
                "input 'x' at [1]: no list, but the others have a list; expected float32[?,2]");
}

TEST_F(RestPredictTest, ColumnsThatTheSignatureDoesNotHaveArePassedOver) {
  const std::string expected = R"({"outputs": {"a": [7], "b": [[1.0]]}})";
  EXPECT_EQ(Predict(R"({"signature_name": "two", "inputs": {"c": {"d": [null]}, "b": [[1]],
                        "e": "x", "a": [7], "c": 1}})"),
            expected);
  EXPECT_EQ(Predict(R"({"inputs": {"y": [], "x": [[1, 2]]}})"), R"({"outputs": [[1.0, 2.0]]})");
}

TEST_F(RestPredictTest, ValuesOfAnotherTypeAreNamedByTheirPlace) {
  ExpectRefused(R"({"instances": [[1, 2], [3, "4"]]})",
                "input 'x' at [1][1]: \"4\" is not of expected type: float32");
  ExpectRefused(R"({"instances": [[1, null]]})",
                "input 'x' at [0][1]: null is not of expected type: float32");
  ExpectRefused(R"({"signature_name": "any", "inputs": [[[1, 2], [3, 4]], [[5, 6], [7, 8.5]]]})",
                "input 'x' at [1][1][1]: 8.5 is not of expected type: int64");
  ExpectRefused(R"({"signature_name": "any", "inputs": true})",
                "input 'x': true is not of expected type: int64");
  ExpectRefused(R"({"signature_name": "bool", "inputs": [true, 1]})",
                "input 'x' at [1]: 1 is not of expected type: bool");
  ExpectRefused(R"({"signature_name": "text", "inputs": ["a", 1]})",
                "input 'x' at [1]: 1 is not of expected type: string");
  ExpectRefused(R"({"signature_name": "complex", "inputs": [1]})",
                "input 'x' is complex64, for which JSON has no values; send it over gRPC",
                Code::kUnimplemented);
}

TEST_F(RestPredictTest, NumbersOutOfRangeAreRefusedWithTheValue) {
  ExpectRefused(R"({"signature_name": "int8", "inputs": [127, 128]})",
                "input 'x' at [1]: 128 is out of the range of int8");
  ExpectRefused(R"({"inputs": [[1, 1e400]]})",
                "input 'x' at [0][1]: 1e400 is out of the range of float32");
  ExpectRefused(R"({"signature_name": "half", "inputs": [65504, -65520]})",
                "input 'x' at [1]: -65520 is out of the range of half");
  EXPECT_EQ(Predict(R"({"signature_name": "half", "inputs": [65504, -Infinity, 0.5]})"),
            R"({"outputs": [65504.0, -Infinity, 0.5]})");
  EXPECT_EQ(
      Predict(R"({"signature_name": "any", "inputs": [9223372036854775807, 9007199254740993]})"),
      R"({"outputs": [9223372036854775807, 9007199254740993]})");
}

TEST_F(RestPredictTest, RaggedListsAreRefused) {
  ExpectRefused(R"({"signature_name": "any", "inputs": [[1, 2], [3]]})",
                "input 'x' at [1]: a list of 1, but the others have 2; expected int64[...]");
  ExpectRefused(R"({"signature_name": "any", "inputs": [[1, 2], 3]})",
                "input 'x' at [1]: no list, but the others have a list; expected int64[...]");
  ExpectRefused(R"({"signature_name": "any", "inputs": [1, [2]]})",
                "input 'x' at [1]: a list is not of expected type: int64");
  ExpectRefused(R"({"signature_name": "any", "inputs": [[], [1]]})",
                "input 'x' at [1]: a list of 1, but the others have 0; expected int64[...]");
  ExpectRefused(R"({"signature_name": "any", "inputs": [[], [[]]]})",
                "input 'x' at [1][0]: a list, but the others have no list; expected int64[...]");
  ExpectRefused(R"({"signature_name": "two", "instances": [{"a": 1, "b": [1]}, {"a": 1, "b": 2}]})",
                "input 'b' at [1]: no list, but the others have a list; expected float32[?,?]");
}

TEST_F(RestPredictTest, ShapesOutsideTheSignatureAreLeftToTheModel) {
  EXPECT_EQ(Predict(R"({"instances": [1.0, 2.0, 5.0]})"), R"({"predictions": [1.0, 2.0, 5.0]})");
  EXPECT_EQ(Seen().dims, Dims{3});
  EXPECT_EQ(Predict(R"({"instances": [[1, 2, 3]]})"), R"({"predictions": [[1.0, 2.0, 3.0]]})");
  EXPECT_EQ(Predict(R"({"inputs": 1.0})"), R"({"outputs": 1.0})");
  EXPECT_EQ(Seen().dims, Dims{});
}

TEST_F(RestPredictTest, UnfitShapesAreReportedWithTheirInput) {
  servable_.answer = [](const Tensors&, Tensors*) { return Status(Code::kInternal, "rank 1"); };
  ExpectRefused(R"({"instances": [1, 2]})",
                "input 'x' is float32[2], signature 'serving_default' names float32[?,2], and "
                "the model does not take it: rank 1");
}

TEST_F(RestPredictTest, CheckedShapesThatTheSignatureDoesNotNameAreRefused) {
  servable_.CheckShapes();
  ExpectRefused(R"({"instances": [[1, 2, 3]]})",
                "input 'x': expected float32[?,2], got float32[1,3]; signature "
                "'serving_default'");
  ExpectRefused(R"({"instances": [1, 2]})",
                "input 'x': expected float32[?,2], got float32[2]; signature "
                "'serving_default'");
  ExpectRefused(R"({"inputs": 1})",
                "input 'x': expected float32[?,2], got float32[]; signature 'serving_default'");
}

TEST_F(RestPredictTest, EmptyListsAreEmptyTensorsOfTheSignaturesShape) {
  EXPECT_EQ(Predict(R"({"inputs": []})"), R"({"outputs": []})");
  EXPECT_EQ(Seen().dims, (Dims{0, 2}));
  EXPECT_EQ(Predict(R"({"signature_name": "two", "inputs": {"a": [], "b": [[], []]}})"),
            R"({"outputs": {"a": [], "b": [[], []]}})");
  EXPECT_EQ(Seen(1).dims, (Dims{2, 0}));
  EXPECT_EQ(Predict(R"({"signature_name": "any", "inputs": [[], []]})"),
            R"({"outputs": [[], []]})");
  EXPECT_EQ(Seen().dims, (Dims{2, 0}));
  EXPECT_EQ(Predict(R"({"signature_name": "fixed", "inputs": []})"), R"({"outputs": []})");
  EXPECT_EQ(Seen().dims, (Dims{0, 2, 3}));
}

TEST_F(RestPredictTest, StringsComeAsTextOrBase64) {
  EXPECT_EQ(Predict(R"({"signature_name": "text", "instances": ["a\n\"", {"b64": "AP8="}, ""]})"),
            R"({"predictions": ["a\n\"", {"b64": "AP8="}, ""]})");
  EXPECT_EQ(Seen().strings[1], std::string("\0\xff", 2));
  EXPECT_EQ(Predict(R"({"signature_name": "text", "instances": [{"b64": "YQ"}, "b"]})"),
            R"({"predictions": ["a", "b"]})");
  EXPECT_EQ(Predict(R"({"signature_name": "text", "inputs": {"b64": "YQ=="}})"),
            R"({"outputs": "a"})");
  EXPECT_EQ(Predict(R"({"signature_name": "text", "inputs": {"x": {"b64": "Y\u0051=="}}})"),
            R"({"outputs": "a"})");
  EXPECT_EQ(Predict(R"({"signature_name": "text_bytes", "inputs": ["a"]})"),
            R"({"outputs": [{"b64": "YQ=="}]})");
  EXPECT_EQ(Predict(R"({"signature_name": "text", "inputs": ["\u0001\u20ac"]})"),
            "{\"outputs\": [\"\\u0001\u20ac\"]}");
}

TEST_F(RestPredictTest, InvalidBase64IsRefused) {
  for (const char* value : {R"({"b64": "Y"})", R"({"b64": "Y!=="})", R"({"b64": 1})", "{}",
                            R"({"b64": "YQ==", "x": 1})", R"({"b46": "YQ=="})"}) {
    Predict(std::string(R"({"signature_name": "text", "inputs": [)") + value + "]}");
    EXPECT_EQ(code_, Code::kInvalidArgument) << value;
  }
  ExpectRefused(R"({"signature_name": "text", "inputs": [{"b64": "Y!=="}]})",
                R"(input 'x' at [0]: "Y!==" is not valid base64; encode the bytes of "b64" as )"
                "in RFC 4648");
  ExpectRefused(R"({"signature_name": "text", "instances": [{"b64": "*"}]})",
                R"(input 'x' at [0]: "*" is not valid base64; encode the bytes of "b64" as in )"
                "RFC 4648");
  ExpectRefused(R"({"signature_name": "text", "inputs": [{"b46": "YQ=="}]})",
                "input 'x' at [0]: an object is not of expected type: string");
}

TEST_F(RestPredictTest, ASignatureWithoutInputsTakesAnEmptyObject) {
  EXPECT_EQ(Predict(R"({"signature_name": "nothing", "inputs": {}})"), R"({"outputs": {}})");
}

TEST_F(RestPredictTest, RowsAreMadeOnlyOfOutputsWithTheSameFirstDimension) {
  servable_.answer = [](const Tensors&, Tensors* outputs) {
    *outputs = {NumberTensor<int64_t>(dtype::kInt64, {2}, {1, 2}),
                NumberTensor<float>(dtype::kFloat, {1, 1}, {3})};
    return Status();
  };
  const std::string rows = R"({"signature_name": "two", "instances": [{"a": 1, "b": [1]}]})";
  ExpectRefused(rows,
                "output 'b' has inconsistent batch size: 1, expecting: 2; send 'inputs' instead of "
                "'instances' to get whole tensors");
  EXPECT_EQ(Predict(R"({"signature_name": "two", "inputs": {"a": [1], "b": [[1]]}})"),
            R"({"outputs": {"a": [1, 2], "b": [[3.0]]}})");
  servable_.answer = [](const Tensors&, Tensors* outputs) {
    (*outputs)[1] = NumberTensor<float>(dtype::kFloat, {}, {3});
    return Status();
  };
  ExpectRefused(rows,
                "output 'b' is a scalar, which has no rows; send 'inputs' instead of 'instances' "
                "to get whole tensors");
}

TEST_F(RestPredictTest, AnOutputThatJsonCannotSayIsRefused) {
  servable_.answer = [](const Tensors&, Tensors* outputs) {
    (*outputs)[0].dtype = 8;
    return Status();
  };
  ExpectRefused(R"({"instances": [[1, 2]]})",
                "output 'x' is complex64, for which JSON has no values; use gRPC",
                Code::kUnimplemented);
}

TEST_F(RestPredictTest, ErrorOfTheRunIsTheStatus) {
  servable_.answer = [](const Tensors&, Tensors*) {
    return Status(Code::kDeadlineExceeded, "late");
  };
  ExpectRefused(R"({"instances": [[1, 2]]})", "late", Code::kDeadlineExceeded);
}

// Long enough for the tensor to grow several times, with rows that end up longer than at first.
TEST_F(RestPredictTest, ManyRowsAreReadWhole) {
  std::string body = R"({"signature_name": "any", "instances": [)";
  Ints expected;
  for (int64_t i = 0; i < 20'000; ++i) {
    if (i > 0) body += ",";
    body += std::to_string(i * i * i);
    expected.push_back(i * i * i);
  }
  Predict(body + "]}");
  ASSERT_EQ(code_, Code::kOk);
  EXPECT_EQ(NumbersOf<int64_t>(Seen()), expected);
  EXPECT_EQ(Seen().dims, Dims{20'000});
}

TEST_F(RestPredictTest, DeepListsAreRefusedWithoutAStackOverflow) {
  const std::string lists(1'000'000, '[');
  Predict(R"({"signature_name": "any", "inputs": )" + lists);
  EXPECT_EQ(code_, Code::kInvalidArgument);
  Predict(R"({"x": )" + lists);
  EXPECT_EQ(code_, Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::rest
