#include "native/inference/infer_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/base/limits.h"
#include "tests/native/answer_alone.h"
#include "tests/native/echo_servable.h"
#include "tests/native/infer_messages.h"

namespace millpond::inference {
namespace {

using base::Code;
using base::Status;
using testing::InferInput;
using testing::InferResponse;
using testing::NumberParameter;
using testing::RawOf;
using testing::SegmentedBytes;
using testing::TextParameter;
using testing::WireMessage;

WireMessage RequestTo(const std::string& signature_name) {
  return WireMessage().Bytes(1, "echo").Bytes(3, "r1").Message(
      4, TextParameter("signature_name", signature_name));
}

// Runs the request like a server; `cut_at` cuts the message into segments.
Status Ask(const std::string& bytes, InferResponse* response, std::vector<size_t> cuts = {}) {
  static const testing::EchoServable servable;
  const SegmentedBytes segmented(bytes, cuts);
  InferMessage message;
  MILLPOND_RETURN_IF_ERROR(DecodeInferMessage(segmented.reader(), &message));
  InferReply reply;
  MILLPOND_RETURN_IF_ERROR(
      testing::AnswerInfer(servable, message.request, MessageElements(message), &reply));
  const auto encoded = EncodeInferReply(reply, {});
  if (!encoded.ok()) return encoded.status();
  *response = testing::ParseInferResponse(std::string(encoded.value().view()));
  return response->parses ? Status() : base::Internal("the reply does not parse");
}

void ExpectRefused(const WireMessage& request, const std::string& in_message,
                   Code code = Code::kInvalidArgument) {
  InferResponse response;
  const Status refused = Ask(request.bytes(), &response);
  EXPECT_EQ(refused.code(), code);
  EXPECT_NE(refused.message().find(in_message), std::string::npos) << refused.message();
}

// Sends typed contents to the signature of `dtype`; the answer has raw contents.
void ExpectTyped(int dtype, const std::string& datatype, const WireMessage& contents,
                 const std::vector<int64_t>& dims, const std::string& raw) {
  const std::string signature_name = "of_" + std::to_string(dtype);
  const WireMessage request =
      RequestTo(signature_name).Message(5, InferInput("x", datatype, dims).Message(5, contents));
  InferResponse response;
  const Status answered = Ask(request.bytes(), &response);
  ASSERT_TRUE(answered.ok()) << datatype << ": " << answered.message();
  ASSERT_EQ(response.outputs.size(), 1);
  EXPECT_EQ(response.outputs[0].datatype, datatype);
  EXPECT_EQ(response.outputs[0].dims, dims);
  EXPECT_EQ(response.raw, std::vector<std::string>{raw}) << datatype;
}

WireMessage RawRequest(int dtype, const std::string& datatype, const std::vector<int64_t>& dims,
                       const std::string& raw) {
  return RequestTo("of_" + std::to_string(dtype))
      .Message(5, InferInput("x", datatype, dims))
      .Bytes(7, raw);
}

TEST(InferCodecTest, RawContentsOfEveryDatatypeComeBackAsTheyWere) {
  const std::string bytes = "0123456789abcdef";
  const struct {
    int dtype;
    const char* datatype;
    int64_t element_bytes;
  } rows[] = {{10, "BOOL", 1},   {4, "UINT8", 1}, {17, "UINT16", 2}, {22, "UINT32", 4},
              {23, "UINT64", 8}, {6, "INT8", 1},  {5, "INT16", 2},   {3, "INT32", 4},
              {9, "INT64", 8},   {19, "FP16", 2}, {1, "FP32", 4},    {2, "FP64", 8},
              {14, "BF16", 2}};
  for (const auto& row : rows) {
    const std::string raw = row.dtype == 10 ? std::string("\1\0\0\1\1\0\1\0", 8) : bytes;
    const int64_t count = static_cast<int64_t>(raw.size()) / row.element_bytes;
    InferResponse response;
    const WireMessage request = RawRequest(row.dtype, row.datatype, {2, count / 2}, raw);
    const Status answered = Ask(request.bytes(), &response, {5, 20, request.bytes().size() - 3});
    ASSERT_TRUE(answered.ok()) << row.datatype << ": " << answered.message();
    EXPECT_EQ(response.model_name, "echo");
    EXPECT_EQ(response.model_version, "7");
    EXPECT_EQ(response.id, "r1");
    EXPECT_EQ(response.outputs[0].datatype, row.datatype);
    EXPECT_EQ(response.outputs[0].dims, (std::vector<int64_t>{2, count / 2}));
    EXPECT_EQ(response.raw, std::vector<std::string>{raw}) << row.datatype;
  }
}

TEST(InferCodecTest, RawStringsComeBackAsTheyWere) {
  const std::string raw = RawOf(std::vector<std::string>{"", "one", std::string(1, '\0'), "\xff"});
  InferResponse response;
  ASSERT_TRUE(Ask(RawRequest(7, "BYTES", {4}, raw).bytes(), &response, {50, 52, 55}).ok());
  EXPECT_EQ(response.raw, std::vector<std::string>{raw});
}

TEST(InferCodecTest, ScalarsAndEmptyTensorsGoBothWays) {
  InferResponse response;
  ASSERT_TRUE(Ask(RawRequest(1, "FP32", {}, RawOf<float>({1.5})).bytes(), &response).ok());
  EXPECT_TRUE(response.outputs[0].dims.empty());
  EXPECT_EQ(response.raw[0], RawOf<float>({1.5}));
  ASSERT_TRUE(Ask(RawRequest(1, "FP32", {0, 3}, "").bytes(), &response).ok());
  EXPECT_EQ(response.outputs[0].dims, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(response.raw[0], "");
  ASSERT_TRUE(Ask(RawRequest(7, "BYTES", {0}, "").bytes(), &response).ok());
  EXPECT_EQ(response.raw[0], "");
}

TEST(InferCodecTest, TypedContentsOfEveryFieldAreTaken) {
  const auto negative = static_cast<uint64_t>(-2);
  const WireMessage ints = WireMessage().Message(2, WireMessage().RawVarint(1).RawVarint(negative));
  ExpectTyped(3, "INT32", ints, {2}, RawOf<int32_t>({1, -2}));
  ExpectTyped(5, "INT16", ints, {2}, RawOf<int16_t>({1, -2}));
  ExpectTyped(6, "INT8", ints, {2}, RawOf<int8_t>({1, -2}));
  const WireMessage uints = WireMessage().Varint(4, 7).Varint(4, 200);  // not packed
  ExpectTyped(4, "UINT8", uints, {2}, RawOf<uint8_t>({7, 200}));
  ExpectTyped(17, "UINT16", uints, {2}, RawOf<uint16_t>({7, 200}));
  ExpectTyped(22, "UINT32", uints, {2}, RawOf<uint32_t>({7, 200}));
  ExpectTyped(10, "BOOL", WireMessage().Message(1, WireMessage().RawVarint(0).RawVarint(2)), {2},
              std::string("\0\1", 2));
  ExpectTyped(9, "INT64", WireMessage().Varint(3, negative), {1}, RawOf<int64_t>({-2}));
  ExpectTyped(23, "UINT64", WireMessage().Varint(5, negative), {1}, RawOf<uint64_t>({negative}));
  ExpectTyped(1, "FP32", WireMessage().Bytes(6, RawOf<float>({1.5, -2})), {1, 2},
              RawOf<float>({1.5, -2}));
  ExpectTyped(2, "FP64", WireMessage().Bytes(7, RawOf<double>({1.5, -2})), {2},
              RawOf<double>({1.5, -2}));
  ExpectTyped(7, "BYTES", WireMessage().Bytes(8, "a").Bytes(8, ""), {2},
              RawOf(std::vector<std::string>{"a", ""}));
}

TEST(InferCodecTest, TypedContentsContradictingTheirSpecAreRefused) {
  const auto typed = [](int dtype, const char* datatype, const std::vector<int64_t>& dims,
                        const WireMessage& contents) {
    return RequestTo("of_" + std::to_string(dtype))
        .Message(5, InferInput("x", datatype, dims).Message(5, contents));
  };
  ExpectRefused(typed(6, "INT8", {1}, WireMessage().Varint(2, 128)),
                "int_contents has value 0 out of the range of INT8");
  ExpectRefused(typed(4, "UINT8", {2}, WireMessage().Varint(4, 1).Varint(4, 256)),
                "uint_contents has value 1 out of the range of UINT8");
  ExpectRefused(typed(1, "FP32", {2}, WireMessage().Bytes(6, RawOf<float>({1}))),
                "fp32_contents holds 1 values, the shape has 2 elements");
  ExpectRefused(typed(1, "FP32", {1}, WireMessage().Bytes(7, RawOf<double>({1}))),
                "fp32_contents holds 0 values");
  ExpectRefused(typed(1, "FP32", {1}, WireMessage().Bytes(6, "abc")), "InferTensorContents");
  ExpectRefused(typed(19, "FP16", {1}, WireMessage().Varint(2, 1)), "send raw_input_contents");
  ExpectRefused(typed(1, "FP32", {1'000'000'000, 1000}, WireMessage()), "holds 0 values");
}

TEST(InferCodecTest, MixedOrIncompleteRawContentsAreRefused) {
  const WireMessage input = InferInput("x", "FP32", {1});
  ExpectRefused(RequestTo("of_1").Message(5, input).Bytes(7, "1234").Bytes(7, "1234"),
                "2 entries for 1 inputs");
  const WireMessage both = InferInput("x", "FP32", {1}).Message(5, WireMessage().Fixed32(6, 1));
  ExpectRefused(RequestTo("of_1").Message(5, both).Bytes(7, "1234"),
                "input 'x': it has contents beside raw_input_contents");
}

TEST(InferCodecTest, ParametersOfEveryKindAndPlaceAreRead) {
  const WireMessage region = TextParameter("shared_memory_region", "r");
  ExpectRefused(RawRequest(1, "FP32", {1}, "1234")
                    .Message(5, InferInput("z", "FP32", {1}).Message(4, region)),
                "'shared_memory_region'", Code::kUnimplemented);
  ExpectRefused(RequestTo("of_1").Message(5, InferInput("x", "FP32", {1}).Message(4, region)),
                "'shared_memory_region'", Code::kUnimplemented);
  const WireMessage output =
      WireMessage().Bytes(1, "x").Message(2, NumberParameter("classification", 3));
  ExpectRefused(RawRequest(1, "FP32", {1}, "1234").Message(6, output), "'classification'",
                Code::kUnimplemented);
  const WireMessage sequence =
      WireMessage().Bytes(1, "sequence_id").Message(2, WireMessage().Fixed64(4, 0x3ff0ULL << 48U));
  ExpectRefused(RawRequest(1, "FP32", {1}, "1234").Message(4, sequence), "'sequence_id'",
                Code::kUnimplemented);
  InferResponse response;
  const WireMessage timeout = NumberParameter("timeout", 1000);
  EXPECT_TRUE(Ask(RawRequest(1, "FP32", {1}, "1234").Message(4, timeout).bytes(), &response).ok());
}

TEST(InferCodecTest, ModelVersionIsAVersionOrALabel) {
  const auto spec_of = [](const std::string& version) {
    const std::string bytes = WireMessage().Bytes(1, "m").Bytes(2, version).bytes();
    const SegmentedBytes segmented(bytes);
    InferMessage message;
    EXPECT_TRUE(DecodeInferMessage(segmented.reader(), &message).ok());
    return message.request.model_spec;
  };
  EXPECT_EQ(spec_of("3").version, 3);
  EXPECT_EQ(spec_of("stable").version_label, "stable");
  EXPECT_EQ(spec_of("").version, std::nullopt);
}

TEST(InferCodecTest, TheModelsNameIsSeenWithoutTheRest) {
  const auto peek = [](const WireMessage& message) {
    const SegmentedBytes segmented(message.bytes());
    return PeekInferModelName(segmented.reader());
  };
  EXPECT_EQ(peek(WireMessage().Bytes(3, "r1").Bytes(1, "m").Raw("\xff")), "m");
  EXPECT_EQ(peek(WireMessage().Bytes(3, "r1")), "");
  EXPECT_EQ(peek(WireMessage().Raw("\xff")), "");
}

TEST(InferCodecTest, MoreNamesThanAnySignatureHasAreRefused) {
  WireMessage outputs;
  for (size_t i = 0; i <= base::kMaxNamesPerRequest; ++i) outputs.Bytes(6, "");
  ExpectRefused(outputs, "more than 10000");
  WireMessage input;
  for (size_t i = 0; i <= base::kMaxNamesPerRequest; ++i) input.Bytes(4, "");
  ExpectRefused(WireMessage().Message(5, input), "more than 10000");
}

TEST(InferCodecTest, AShapeOfTooManyDimensionsTakesNoMemory) {
  const std::vector<int64_t> dims(1'000'000, 1);
  ExpectRefused(RawRequest(1, "FP32", dims, "1234"), "254");
}

TEST(InferCodecTest, UnparsableBytesAreRefused) {
  ExpectRefused(WireMessage().Raw("\xff"), "not an inference.ModelInferRequest");
  ExpectRefused(WireMessage().Bytes(1, "\xff"), "not an inference.ModelInferRequest");
}

}  // namespace
}  // namespace millpond::inference
