#include "native/inference/model_spec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "tests/native/fake_metadata.h"
#include "tests/native/predict_messages.h"
#include "tests/native/wire_message.h"

namespace millpond::inference {
namespace {

using base::Code;
using testing::ModelSpecMessage;
using testing::SegmentedBytes;
using testing::WireMessage;

bool Read(const WireMessage& message, ModelSpec* spec) {
  const SegmentedBytes segmented(message.bytes());
  return ReadModelSpec(segmented.reader(), spec);
}

WireMessage VersionValue(uint64_t value) { return WireMessage().Varint(1, value); }

TEST(ModelSpec, ReadsNameVersionAndSignature) {
  ModelSpec spec;
  ASSERT_TRUE(Read(ModelSpecMessage("ctr", 7, "classify"), &spec));
  EXPECT_EQ(spec.name, "ctr");
  EXPECT_EQ(spec.version, 7);
  EXPECT_EQ(spec.signature_name, "classify");
  EXPECT_FALSE(spec.version_label);
}

TEST(ModelSpec, VersionWithoutValueIs0AndMissingOneIsNullopt) {
  ModelSpec spec;
  ASSERT_TRUE(Read(ModelSpecMessage("m"), &spec));
  EXPECT_FALSE(spec.version);
  ASSERT_TRUE(Read(WireMessage().Bytes(2, ""), &spec));
  EXPECT_EQ(spec.version, 0);
}

TEST(ModelSpec, OfVersionAndLabelTheLastOneCounts) {
  ModelSpec spec;
  ASSERT_TRUE(Read(WireMessage().Message(2, VersionValue(7)).Bytes(4, "stable"), &spec));
  EXPECT_FALSE(spec.version);
  EXPECT_EQ(spec.version_label, "stable");
  ASSERT_TRUE(Read(WireMessage().Message(2, VersionValue(8)), &spec));
  EXPECT_EQ(spec.version, 8);
  EXPECT_FALSE(spec.version_label);
}

TEST(ModelSpec, AVersionThatComesTwiceIsMergedAsProtobufDoes) {
  ModelSpec spec;
  ASSERT_TRUE(Read(WireMessage().Message(2, VersionValue(7)).Bytes(2, ""), &spec));
  EXPECT_EQ(spec.version, 7);
}

TEST(ModelSpec, UnknownAndMistypedFieldsAreSkipped) {
  ModelSpec spec;
  ASSERT_TRUE(
      Read(WireMessage().Varint(1, 5).Fixed32(2, 5).Group(9, WireMessage()).Bytes(1, "m"), &spec));
  EXPECT_EQ(spec.name, "m");
  EXPECT_FALSE(spec.version);
}

TEST(ModelSpec, NonUtf8NamesAndBrokenVersionsAreRefused) {
  ModelSpec spec;
  EXPECT_FALSE(Read(WireMessage().Bytes(1, "\xff"), &spec));
  EXPECT_FALSE(Read(WireMessage().Bytes(3, "\xff"), &spec));
  EXPECT_FALSE(Read(WireMessage().Bytes(4, "\xff"), &spec));
  EXPECT_FALSE(Read(WireMessage().Bytes(2, "\x08"), &spec));
}

TEST(ModelSpec, WrittenSpecReadsBackWithTheAnnouncedSize) {
  for (const int64_t version : {int64_t{0}, int64_t{1}, int64_t{1'700'000'000}, int64_t{-1},
                                std::numeric_limits<int64_t>::min()}) {
    for (const char* signature_name : {"", "serving_default"}) {
      const ModelSpec spec{"name", version, {}, signature_name};
      std::string bytes(EncodedModelSpecBytes(spec), '\0');
      base::WireWriter writer(bytes.data());
      WriteModelSpec(spec, &writer);
      ASSERT_EQ(writer.position(), bytes.data() + bytes.size());
      ModelSpec read;
      ASSERT_TRUE(Read(WireMessage().Raw(bytes), &read));
      EXPECT_EQ(read.name, "name");
      EXPECT_EQ(read.version, version);
      EXPECT_EQ(read.signature_name, signature_name);
    }
  }
}

TEST(ModelSpec, WithoutAVersionNoneIsWritten) {
  const ModelSpec spec{"n", {}, {}, ""};
  EXPECT_EQ(EncodedModelSpecBytes(spec), ModelSpecMessage("n").bytes().size());
}

std::string PeekedIn(const std::string& request) {
  const std::string_view bytes(request);
  return PeekModelName({&bytes, 1});
}

TEST(PeekModelName, IsTakenFromFieldOneOfAnyRequest) {
  const std::string spec = WireMessage().Message(1, ModelSpecMessage("m", 7)).bytes();
  EXPECT_EQ(PeekedIn(spec), "m");
  EXPECT_EQ(PeekedIn(WireMessage().Bytes(2, "x").bytes() + spec), "m");
  EXPECT_EQ(PeekedIn(spec + "\xff\xff"), "m");
}

TEST(PeekModelName, IsEmptyIfTheRequestHasNoSpec) {
  EXPECT_EQ(PeekedIn(""), "");
  EXPECT_EQ(PeekedIn("\xff"), "");
  EXPECT_EQ(PeekedIn(WireMessage().Bytes(2, "x").bytes()), "");
  EXPECT_EQ(PeekedIn(WireMessage().Bytes(1, "\xff").bytes()), "");
}

TEST(CheckModelSpec, RequiresASpecWithAName) {
  ModelSpec spec;
  EXPECT_EQ(CheckModelSpec({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckModelSpec(spec).code(), Code::kInvalidArgument);
  spec.name = "m";
  EXPECT_TRUE(CheckModelSpec(spec).ok());
}

TEST(ToVersionChoice, IsTheVersionOrTheLabelOrNeither) {
  EXPECT_EQ(ToVersionChoice({"m", 7, {}, ""}, nullptr).version, 7);
  const ModelSpec labelled{"m", {}, "stable", ""};
  const servable::VersionChoice by_label = ToVersionChoice(labelled, nullptr);
  EXPECT_FALSE(by_label.version);
  EXPECT_EQ(by_label.label, "stable");
  const servable::FakeMetadata metadata;
  const servable::VersionChoice neither = ToVersionChoice({"m", {}, {}, ""}, &metadata);
  EXPECT_FALSE(neither.version || neither.label);
  EXPECT_EQ(neither.metadata, &metadata);
}

}  // namespace
}  // namespace millpond::inference
