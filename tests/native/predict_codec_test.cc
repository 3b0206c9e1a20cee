#include "native/inference/predict_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/base/limits.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/predict_decoders.h"
#include "tests/native/predict_messages.h"
#include "tests/native/tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::Decoded;
using testing::DecodeOurs;
using testing::DoAllTensorsParse;
using testing::InputMessage;
using testing::ModelSpecMessage;
using testing::PredictMessage;
using testing::ProtobufDecoder;
using testing::SegmentedBytes;
using testing::TensorBytes;
using testing::Vector;
using testing::WireMessage;

std::string EveryField() {
  return PredictMessage(ModelSpecMessage("model", 300, "serving_default"),
                        {{"a", TensorBytes(Vector<float>({1, 2}))},
                         {"dénse", TensorBytes(Vector<int64_t>({-1, 1'000}))}},
                        {"y", "z"}) +
         WireMessage().Message(1, WireMessage().Bytes(4, "stable")).Varint(9, 1).bytes();
}

void ExpectSame(const Decoded& ours, const Decoded& protobufs, const std::string& what) {
  EXPECT_TRUE(ours.is_ok || ours.status.code() == Code::kInvalidArgument) << what;
  ASSERT_EQ(ours.is_ok && DoAllTensorsParse(ours), protobufs.is_ok) << what;
  if (!protobufs.is_ok) return;
  ASSERT_EQ(ours.text, protobufs.text) << what;
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    tensorflow::TensorProto tensor;
    ASSERT_TRUE(tensor.ParseFromString(ours.tensors[i]));
    ASSERT_EQ(tensor.SerializeAsString(), protobufs.tensors[i]) << what;
  }
}

TEST(DecodePredictRequest, ReadsLikeProtobuf) {
  const Decoded decoded = DecodeOurs(EveryField());
  ASSERT_TRUE(decoded.is_ok);
  EXPECT_EQ(
      decoded.text,
      "name=model;signature=serving_default;label=stable;filter=y;filter=z;input=a;input=dénse;");
  ExpectSame(decoded, ProtobufDecoder().Decode(EveryField()), "every field");
}

TEST(DecodePredictRequest, ReadsTheSameWhereverACutFalls) {
  const std::string bytes = EveryField();
  const Decoded whole = DecodeOurs(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const Decoded in_two = DecodeOurs(bytes, {cut});
    ASSERT_EQ(in_two.text, whole.text);
    ASSERT_EQ(in_two.tensors, whole.tensors);
  }
}

TEST(DecodePredictRequest, ReadsLikeProtobufCutShortAtAnyByte) {
  const ProtobufDecoder protobuf;
  const std::string bytes = EveryField();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    ExpectSame(DecodeOurs(cut), protobuf.Decode(cut), "cut at " + std::to_string(size));
  }
}

// `value` as a varint of `size` bytes, with bits above the value's own in the last byte.
std::string Padded(uint64_t value, size_t size, unsigned high_bits) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i, value >>= 7U) bytes += static_cast<char>(value | 0x80U);
  bytes.back() = static_cast<char>((bytes.back() & 0x7F) | static_cast<int>(high_bits));
  return bytes;
}

TEST(DecodePredictRequest, ReadsPaddedTagsAndLengthsLikeProtobuf) {
  const ProtobufDecoder protobuf;
  const std::string rest = "\x0a\x01m" + WireMessage().Bytes(2, "\x0a\x01x").bytes();
  size_t read_count = 0;
  for (size_t size = 1; size <= 11; ++size) {
    for (const unsigned high_bits : {0x00U, 0x10U, 0x40U}) {
      if (size == 1 && high_bits != 0) continue;
      for (const std::string& bytes :
           {Padded(1U << 3U | 2U, size, high_bits) + "\x03" + rest,          // a field that is read
            Padded(9U << 3U | 0U, size, high_bits) + "\x01\x0a\x03" + rest,  // one that is skipped
            "\x0a" + Padded(3, size, high_bits) + rest,
            "\x4a" + Padded(3, size, high_bits) + rest}) {
        const Decoded ours = DecodeOurs(bytes);
        ExpectSame(ours, protobuf.Decode(bytes), ::testing::PrintToString(bytes));
        read_count += ours.is_ok ? 1 : 0;
      }
    }
  }
  EXPECT_GE(read_count, 4 * 5);  // all four, in one to five bytes
}

TEST(DecodePredictRequest, AnEmptyMessageIsARequestWithoutASpec) {
  PredictRequest request;
  EXPECT_TRUE(DecodePredictRequest({}, &request).ok());
  EXPECT_FALSE(request.model_spec);
  EXPECT_TRUE(request.inputs.empty());
}

TEST(DecodePredictRequest, KeepsAnInputSentTwiceInTheOrderInWhichItCame) {
  const std::string bytes = WireMessage()
                                .Message(2, InputMessage("x", "first"))
                                .Message(2, InputMessage("y", "other"))
                                .Message(2, InputMessage("x", "last"))
                                .bytes();
  const SegmentedBytes segmented(bytes);
  PredictRequest request;
  ASSERT_TRUE(DecodePredictRequest(segmented.reader(), &request).ok());
  std::string text;
  for (auto& input : request.inputs) {
    text += input.name + "=";
    input.tensor.AppendRest(&text);
    text += ";";
  }
  EXPECT_EQ(text, "x=first;y=other;x=last;");
}

TEST(DecodePredictRequest, MoreNamesThanAnySignatureHasAreRefused) {
  const auto decode = [](uint32_t field, size_t count) {
    WireMessage request;
    for (size_t i = 0; i < count; ++i) request.Bytes(field, "");
    return DecodeOurs(request.bytes()).is_ok;
  };
  for (const uint32_t field : {2, 3}) {
    EXPECT_TRUE(decode(field, base::kMaxNamesPerRequest));
    EXPECT_FALSE(decode(field, base::kMaxNamesPerRequest + 2));
    EXPECT_FALSE(decode(field, 1'000'000));
  }
}

TEST(DecodePredictRequest, AnInputOfTwoValuesIsRefused) {
  const WireMessage entry = InputMessage("x", "first").Bytes(2, "second");
  EXPECT_FALSE(DecodeOurs(WireMessage().Message(2, entry).bytes()).is_ok);
}

TEST(DecodePredictRequest, OtherBytesAreRefusedWithTheirNumber) {
  const SegmentedBytes segmented("\xff\xff\xff not a request");
  PredictRequest request;
  const base::Status refused = DecodePredictRequest(segmented.reader(), &request);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "the message's 17 bytes are not a tensorflow.serving.PredictRequest");
}

TEST(EncodePredictReply, WritesAReplyThatReadsBackInEitherEncoding) {
  const std::string names[] = {"y", "z"};
  for (const auto encoding :
       {tensor::TensorEncoding::kTypedFields, tensor::TensorEncoding::kTensorContent}) {
    PredictReply reply;
    reply.model_spec = {"m", 7, {}, "serving_default"};
    reply.tensors.storage().tensors = {Vector<int64_t>({-1, 300}), Vector<float>({1.5})};
    reply.outputs = {{&names[0], 1}, {&names[1], 0}};
    reply.encoding = encoding;
    const auto encoded = EncodePredictReply(reply, {});
    ASSERT_TRUE(encoded.ok());
    const testing::PredictResponse read =
        testing::ParsePredictResponse(std::string(encoded.value().view()));
    ASSERT_TRUE(read.parses);
    EXPECT_EQ(read.model_name, "m");
    EXPECT_EQ(read.version, 7);
    EXPECT_EQ(read.signature_name, "serving_default");
    EXPECT_TRUE(testing::IsSame(testing::ParseTensor(read.outputs.at("y")), Vector<float>({1.5})));
    EXPECT_TRUE(
        testing::IsSame(testing::ParseTensor(read.outputs.at("z")), Vector<int64_t>({-1, 300})));
  }
}

}  // namespace
}  // namespace millpond::inference
