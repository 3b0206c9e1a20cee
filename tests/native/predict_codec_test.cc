#include "native/inference/predict_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/log/globals.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "native/base/limits.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/predict_messages.h"
#include "tests/native/tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::InputMessage;
using testing::ModelSpecMessage;
using testing::Mutate;
using testing::PredictMessage;
using testing::SegmentedBytes;
using testing::TensorBytes;
using testing::Vector;
using testing::WireMessage;

// The content of a request, as text by which two decoders can be compared.
struct Decoded {
  bool is_ok = false;
  std::string text;
  std::vector<std::string> tensors;  // serialized, by ascending name
};

void Describe(const std::string& name, const std::string& value, std::string* text) {
  *text += name + "=" + value + ";";
}

Decoded DecodeOurs(const std::string& bytes, const std::vector<size_t>& cuts = {}) {
  const SegmentedBytes segmented(bytes, cuts);
  PredictRequest request;
  Decoded decoded;
  const base::Status status = DecodePredictRequest(segmented.reader(), &request);
  EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument);
  decoded.is_ok = status.ok();
  if (!decoded.is_ok) return decoded;
  if (request.model_spec) {
    const ModelSpec& spec = *request.model_spec;
    Describe("name", spec.name, &decoded.text);
    Describe("signature", spec.signature_name, &decoded.text);
    if (spec.version) Describe("version", std::to_string(*spec.version), &decoded.text);
    if (spec.version_label) Describe("label", *spec.version_label, &decoded.text);
  }
  for (const std::string& name : request.output_filter) Describe("filter", name, &decoded.text);
  std::map<std::string, std::string> tensors;
  for (auto& input : request.inputs) {
    std::string& tensor = tensors[input.name];
    tensor.clear();  // the last one of a name counts
    input.tensor.AppendRest(&tensor);
  }
  for (const auto& [name, tensor] : tensors) {
    Describe("input", name, &decoded.text);
    decoded.tensors.push_back(tensor);
  }
  return decoded;
}

// tensorflow_serving/apis/predict.proto and model.proto, as far as the decoder reads them. An
// Int64Value of its own has the same bytes as google.protobuf's.
constexpr char kPredictProto[] = R"(
  name: 'predict_for_tests.proto' package: 'test' syntax: 'proto3'
  dependency: 'tensorflow/core/framework/tensor.proto'
  message_type { name: 'Int64Value'
    field { name: 'value' number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
  message_type { name: 'ModelSpec'
    field { name: 'name' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: 'version' number: 2 type: TYPE_MESSAGE type_name: '.test.Int64Value'
            label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: 'version_label' number: 4 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: 'signature_name' number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
    oneof_decl { name: 'version_choice' } }
  message_type { name: 'PredictRequest'
    field { name: 'model_spec' number: 1 type: TYPE_MESSAGE type_name: '.test.ModelSpec'
            label: LABEL_OPTIONAL }
    field { name: 'inputs' number: 2 type: TYPE_MESSAGE
            type_name: '.test.PredictRequest.InputsEntry' label: LABEL_REPEATED }
    field { name: 'output_filter' number: 3 type: TYPE_STRING label: LABEL_REPEATED }
    nested_type { name: 'InputsEntry' options { map_entry: true }
      field { name: 'key' number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: 'value' number: 2 type: TYPE_MESSAGE type_name: '.tensorflow.TensorProto'
              label: LABEL_OPTIONAL } } })";

// Decodes with protobuf itself.
class ProtobufDecoder {
 public:
  ProtobufDecoder() {
    absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);  // it logs each name that is not UTF-8
    (void)tensorflow::TensorProto::descriptor();  // links its file into the generated pool
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kPredictProto, &file));
    const auto* built = pool_.BuildFile(file);
    EXPECT_NE(built, nullptr);
    request_ = factory_.GetPrototype(built->FindMessageTypeByName("PredictRequest"));
  }

  Decoded Decode(const std::string& bytes) const {
    const std::unique_ptr<google::protobuf::Message> request(request_->New());
    Decoded decoded;
    decoded.is_ok = request->ParseFromString(bytes);
    if (!decoded.is_ok) return decoded;
    const auto& message = *request;
    const auto* reflection = message.GetReflection();
    if (reflection->HasField(message, Field(message, "model_spec"))) {
      DescribeSpec(reflection->GetMessage(message, Field(message, "model_spec")), &decoded.text);
    }
    const auto* filter = Field(message, "output_filter");
    for (int i = 0; i < reflection->FieldSize(message, filter); ++i) {
      Describe("filter", reflection->GetRepeatedString(message, filter, i), &decoded.text);
    }
    DescribeInputs(message, &decoded);
    return decoded;
  }

 private:
  using Message = google::protobuf::Message;

  static const google::protobuf::FieldDescriptor* Field(const Message& message, const char* name) {
    return message.GetDescriptor()->FindFieldByName(name);
  }
  static std::string String(const Message& message, const char* name) {
    return message.GetReflection()->GetString(message, Field(message, name));
  }

  static void DescribeSpec(const Message& spec, std::string* text) {
    const auto* reflection = spec.GetReflection();
    Describe("name", String(spec, "name"), text);
    Describe("signature", String(spec, "signature_name"), text);
    if (reflection->HasField(spec, Field(spec, "version"))) {
      const Message& version = reflection->GetMessage(spec, Field(spec, "version"));
      const int64_t value = version.GetReflection()->GetInt64(version, Field(version, "value"));
      Describe("version", std::to_string(value), text);
    }
    if (reflection->HasField(spec, Field(spec, "version_label"))) {
      Describe("label", String(spec, "version_label"), text);
    }
  }

  static void DescribeInputs(const Message& request, Decoded* decoded) {
    const auto* reflection = request.GetReflection();
    const auto* inputs = Field(request, "inputs");
    std::map<std::string, std::string> tensors;
    for (int i = 0; i < reflection->FieldSize(request, inputs); ++i) {
      const Message& entry = reflection->GetRepeatedMessage(request, inputs, i);
      const Message& tensor = entry.GetReflection()->GetMessage(entry, Field(entry, "value"));
      tensors[String(entry, "key")] = tensor.SerializeAsString();
    }
    for (const auto& [name, tensor] : tensors) {
      Describe("input", name, &decoded->text);
      decoded->tensors.push_back(tensor);
    }
  }

  google::protobuf::DescriptorPool pool_{google::protobuf::DescriptorPool::generated_pool()};
  google::protobuf::DynamicMessageFactory factory_;
  const Message* request_ = nullptr;
};

std::string EveryField() {
  return PredictMessage(ModelSpecMessage("model", 300, "serving_default"),
                        {{"a", TensorBytes(Vector<float>({1, 2}))},
                         {"dénse", TensorBytes(Vector<int64_t>({-1, 1'000}))}},
                        {"y", "z"}) +
         WireMessage().Message(1, WireMessage().Bytes(4, "stable")).Varint(9, 1).bytes();
}

// Protobuf refuses a request with a tensor that does not parse; this decoder leaves the tensors to
// DecodeTensor.
bool DoAllTensorsParse(const Decoded& decoded) {
  return std::all_of(decoded.tensors.begin(), decoded.tensors.end(), [](const std::string& bytes) {
    return tensorflow::TensorProto().ParseFromString(bytes);
  });
}

void ExpectSame(const Decoded& ours, const Decoded& protobufs, const std::string& what) {
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

// The decoders differ in two rare cases. An entry of the map with two values, which protobuf would
// merge, is refused. A tensor that does not parse is skipped if its input is sent again.
TEST(DecodePredictRequest, MutatedRequestsReadAsWithProtobuf) {
  const ProtobufDecoder protobuf;
  std::mt19937_64 rng(20'269);
  const std::string original = EveryField();
  int taken_count = 0;
  int differing_count = 0;
  for (int mutation = 0; mutation < 20'000; ++mutation) {
    const std::string bytes = Mutate(original, rng);
    const Decoded ours = DecodeOurs(bytes, {rng() % (bytes.size() + 1)});
    const Decoded protobufs = protobuf.Decode(bytes);
    if ((ours.is_ok && DoAllTensorsParse(ours)) != protobufs.is_ok) {
      ++differing_count;
      continue;
    }
    ExpectSame(ours, protobufs, "mutation " + ::testing::PrintToString(bytes));
    if (HasFatalFailure()) return;
    taken_count += ours.is_ok ? 1 : 0;
  }
  EXPECT_GT(taken_count, 1'000);
  EXPECT_LT(differing_count, 10);
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
       {tf::TensorEncoding::kTypedFields, tf::TensorEncoding::kTensorContent}) {
    PredictReply reply;
    reply.model_spec = {"m", 7, {}, "serving_default"};
    reply.tensors.tensors() = {Vector<int64_t>({-1, 300}), Vector<float>({1.5})};
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
