#include "native/inference/metadata.h"

#include <gtest/gtest.h>

#include <string>

#include "native/servable/serving_map.h"
#include "tests/native/predict_messages.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::LabelSpecMessage;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::WireMessage;

class MetadataTest : public ::testing::Test {
 protected:
  MetadataTest() { EXPECT_TRUE(servable::PublishHighest(map_, model_.entry).ok()); }

  base::StatusOr<std::string> Get(const WireMessage& request) {
    const SegmentedBytes segmented(request.bytes(), {request.bytes().size() / 2});
    MetadataRequest metadata;
    MILLPOND_RETURN_IF_ERROR(DecodeMetadataRequest(segmented.reader(), &metadata));
    const auto choice = ToVersionChoice(*metadata.model_spec, /*metadata=*/nullptr);
    const auto handle = map_.LookUp(metadata.model_spec->name, choice);
    if (!handle.ok()) return handle.status();
    return EncodeMetadata(*handle.value());
  }
  void ExpectRefused(const WireMessage& request, Code code, const std::string& in_message) {
    const auto reply = Get(request);
    EXPECT_EQ(reply.status().code(), code);
    EXPECT_NE(reply.status().message().find(in_message), std::string::npos)
        << reply.status().message();
  }

  testing::Scripted model_{"m", 7};
  servable::ServingMap map_;
};

TEST_F(MetadataTest, AnswersTheSignaturesAndTheVersionThatTheyAreOf) {
  const auto reply = Get(WireMessage().Message(1, ModelSpecMessage("m")).Bytes(2, "signature_def"));
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  const WireMessage any = WireMessage()
                              .Bytes(1, "type.googleapis.com/tensorflow.serving.SignatureDefMap")
                              .Bytes(2, model_.servable->signature_def_map());
  EXPECT_EQ(reply.value(), WireMessage()
                               .Message(1, ModelSpecMessage("m", 7))
                               .Message(2, WireMessage().Bytes(1, "signature_def").Message(2, any))
                               .bytes());
  EXPECT_EQ(model_.entry->handle_count(), 0);
}

TEST_F(MetadataTest, RequiresTheFieldSignatureDefAlone) {
  const WireMessage spec = ModelSpecMessage("m");
  ExpectRefused(WireMessage().Message(1, spec), Code::kInvalidArgument, "names no metadata_field");
  ExpectRefused(WireMessage().Message(1, spec).Bytes(2, "signature_def").Bytes(2, "weights"),
                Code::kInvalidArgument, "'weights'");
  WireMessage many;
  for (int i = 0; i < 10'002; ++i) many.Bytes(2, "");
  ExpectRefused(many.Message(1, spec), Code::kInvalidArgument, "10000");
}

TEST_F(MetadataTest, RefusesAMissingSpecAnUnknownModelAndOtherBytes) {
  ExpectRefused(WireMessage().Bytes(2, "signature_def"), Code::kInvalidArgument, "ModelSpec");
  ExpectRefused(WireMessage().Message(1, ModelSpecMessage("q")).Bytes(2, "signature_def"),
                Code::kNotFound, "q");
  ExpectRefused(WireMessage().Message(1, ModelSpecMessage("m", 8)).Bytes(2, "signature_def"),
                Code::kNotFound, "Specific(m, 8)");
  ExpectRefused(WireMessage().Raw("\xff"), Code::kInvalidArgument, "GetModelMetadataRequest");
}

TEST_F(MetadataTest, GoesByLabelAndDefaultAndLeavesTheCanaryToPredict) {
  const testing::Scripted canary("m", 8);
  ASSERT_TRUE(servable::PublishHighest(map_, canary.entry).ok());
  ASSERT_TRUE(map_.SetRouting("m", {7, {{"next", 8}, {"later", 9}}, 8, 1}).ok());
  const auto get = [&](const WireMessage& spec) {
    return Get(WireMessage().Message(1, spec).Bytes(2, "signature_def")).value();
  };
  EXPECT_EQ(get(ModelSpecMessage("m")), get(ModelSpecMessage("m", 7)));
  EXPECT_EQ(get(LabelSpecMessage("m", "next")), get(ModelSpecMessage("m", 8)));
  EXPECT_NE(get(ModelSpecMessage("m", 7)), get(ModelSpecMessage("m", 8)));
  const auto refused = [&](const char* label, Code code, const std::string& in_message) {
    ExpectRefused(WireMessage().Message(1, LabelSpecMessage("m", label)).Bytes(2, "signature_def"),
                  code, in_message);
  };
  refused("stable", Code::kInvalidArgument, "Unrecognized servable version label: stable");
  refused("later", Code::kNotFound, "'later'");
}

}  // namespace
}  // namespace millpond::inference
