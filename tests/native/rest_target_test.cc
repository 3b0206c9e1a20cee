#include "native/rest/rest_target.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace millpond::rest {
namespace {

using metrics::Method;

TEST(RestTargetTest, NamesMethodModelAndVersion) {
  const auto latest = ParseRestTarget("/v1/models/m:predict");
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->method, Method::kRestPredict);
  EXPECT_EQ(latest->model.name, "m");
  EXPECT_FALSE(latest->model.version);
  const auto numbered = ParseRestTarget("/v1/models/m/versions/007:classify?a=b");
  ASSERT_TRUE(numbered);
  EXPECT_EQ(numbered->method, Method::kRestClassify);
  EXPECT_EQ(numbered->model.version, 7);
  const auto labelled = ParseRestTarget("/v1/models/m/labels/a%20b:regress");
  ASSERT_TRUE(labelled);
  EXPECT_EQ(labelled->method, Method::kRestRegress);
  EXPECT_EQ(labelled->model.version_label, "a b");
}

TEST(RestTargetTest, MatchesV1InAnyCaseAndDecodesNames) {
  const auto target = ParseRestTarget("/V1/Models/a%2Fb/VERSIONS/1:PREDICT");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->model.name, "a/b");
  EXPECT_EQ(target->model.version, 1);
}

TEST(RestTargetTest, NamesVersionsAndLabelsOfTheOpenProtocol) {
  const auto numbered = ParseRestTarget("/v2/models/m/versions/3/infer");
  ASSERT_TRUE(numbered);
  EXPECT_EQ(numbered->method, Method::kRestModelInfer);
  EXPECT_EQ(numbered->model.version, 3);
  EXPECT_EQ(ParseRestTarget("/v2/models/m/versions/new/infer")->model.version_label, "new");
  const auto highest = ParseRestTarget("/v2/models/m/versions/9223372036854775807/infer");
  EXPECT_EQ(highest->model.version, INT64_MAX);
  EXPECT_EQ(highest->model.version_label, std::nullopt);
  EXPECT_EQ(ParseRestTarget("/v2/models/m/versions/9223372036854775808/infer")->model.version_label,
            "9223372036854775808");
  EXPECT_EQ(ParseRestTarget("/v2/models/a:b/infer")->model.name, "a:b");
}

TEST(RestTargetTest, NamesTheVersionWhoseMetadataIsAskedFor) {
  EXPECT_EQ(ParseMetadataTarget("/v1/models/m/metadata")->name, "m");
  EXPECT_EQ(ParseMetadataTarget("/V1/models/m/versions/07/METADATA?x")->version, 7);
  EXPECT_EQ(ParseMetadataTarget("/v1/models/m/labels/a%20b/metadata")->version_label, "a b");
  for (const char* const target :
       {"", "/v1/models/metadata", "/v1/models/m", "/v1/models/m/metadata/",
        "/v1/models/m:metadata", "/v1/models/m/versions/x/metadata", "/v2/models/m/metadata"}) {
    EXPECT_FALSE(ParseMetadataTarget(target)) << target;
  }
}

TEST(RestTargetTest, EachDocumentHasOnePathForAllSpellings) {
  const std::vector<std::pair<const char*, const char*>> paths = {
      {"/v1/models/m", "/v1/models/m"},
      {"/V1/MODELS/M?x=y", "/v1/models/M"},
      {"/v1/models/a%2fb%20", "/v1/models/a%2Fb%20"},
      {"/v1/models/m/Versions/007", "/v1/models/m/versions/7"},
      {"/v1/models/m/LABELS/%6c", "/v1/models/m/labels/l"},
      {"/v2/models/m", "/v2/models/m"},
      {"/v2/models/a:b/ready", "/v2/models/a%3Ab/ready"},
      {"/v2/models/m/versions/01/ready", "/v2/models/m/versions/1/ready"},
      {"/v2/models/m/versions/l%20", "/v2/models/m/versions/l%20"},
      {"/v2/health/live?x", "/v2/health/live"},
      {"/readyz", "/readyz"},
      {"/readyz?x=1#y", "/readyz"},
      {"/readyz?model=a+b", "/readyz?model=a%20b"},
      {"/readyz?model=a&x&model=%62", "/readyz?model=b"},
  };
  for (const auto& [target, path] : paths) EXPECT_EQ(DocumentPath(target), path) << target;
  // Python refuses these, and says why.
  for (const char* const target :
       {"/v1/models/m:predict", "/v1/models/a:b", "/v1/models/m/", "/v1/models/m/versions/x",
        "/v1/models/m/versions/1/x", "/v2/models/m/config", "/v2/models/m/", "/v2/models/"}) {
    EXPECT_EQ(DocumentPath(target), "") << target;
  }
}

TEST(RestTargetTest, LeavesAllElseToOthers) {
  for (const char* const target : {"",
                                   "/",
                                   "/v1/models",
                                   "/v1/models/",
                                   "/v1/models/m",
                                   "/v1/models/m:explain",
                                   "/v1/models/:predict",
                                   "/v1/models/a/b:predict",
                                   "/v1/models/m/versions/x:predict",
                                   "/v1/models/m/versions/:predict",
                                   "/v1/models/m/versions/99999999999999999999:predict",
                                   "/v1/models/m/labels/:predict",
                                   "/v1/models/m:predict/",
                                   "/v1/models/m:predict:predict",
                                   "/v2/models/m",
                                   "/v2/models/m/infer/",
                                   "/v2/models//infer",
                                   "/v2/models/m/versions//infer",
                                   "/V2/models/m/infer",
                                   "/v2/models/m/generate"}) {
    EXPECT_FALSE(ParseRestTarget(target)) << target;
  }
}

TEST(RestTargetTest, UrlCodingIsUndone) {
  EXPECT_EQ(UrlDecode("a%2Fb%2fc%zz%4"), "a/b/c%zz%4");
  EXPECT_EQ(UrlEncode("a/b\n_.-~\xC3\xA9"), "a%2Fb%0A_.-~%C3%A9");
}

}  // namespace
}  // namespace millpond::rest
