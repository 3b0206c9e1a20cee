#include "native/rest/rest_request.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millpond::rest {
namespace {

servable::BatchKey KeyOf(std::string_view body,
                         metrics::Method method = metrics::Method::kRestPredict) {
  RestRequest request;
  request.method = method;
  request.model.name = "m";
  request.body = body;
  return BatchKeyOf(request);
}

TEST(BatchKeyOfRestRequest, ABodyWithoutASignatureMeansTheDefault) {
  EXPECT_EQ(KeyOf("{\"instances\": [1]}"), servable::BatchKeyOf("m", ""));
  EXPECT_EQ(KeyOf(""), servable::BatchKeyOf("m", ""));
}

TEST(BatchKeyOfRestRequest, TheSignatureIsFoundAtBothEndsOfTheBody) {
  const servable::BatchKey key = servable::BatchKeyOf("m", "s");
  const std::string rows(2'000, ' ');
  EXPECT_EQ(KeyOf("{\"signature_name\" : \"s\", \"instances\": [" + rows + "]}"), key);
  EXPECT_EQ(KeyOf("{\"instances\": [" + rows + "], \"signature_name\":\n\"s\"}"), key);
}

TEST(BatchKeyOfRestRequest, TheKeyIsThatOfARequestOverGrpc) {
  EXPECT_EQ(KeyOf("{\"signature_name\":\"serving_default\"}"), servable::BatchKeyOf("m", ""));
}

TEST(BatchKeyOfRestRequest, ABodyThatEndsWithinTheNameMeansTheDefault) {
  for (const std::string_view body :
       {"{\"signature_name\"", "{\"signature_name\":", "{\"signature_name\": \"s",
        "{\"signature_name\" 7", "{\"signature_name\": 7"}) {
    EXPECT_EQ(KeyOf(body), servable::BatchKeyOf("m", "")) << body;
  }
}

TEST(BatchKeyOfRestRequest, ACompressedBodyHasNoKey) {
  RestRequest request;
  request.model.name = "m";
  std::vector<std::pair<std::string, std::string>> fields = {{"content-encoding", "gzip"}};
  request.headers = RequestHeaders(std::move(fields));
  EXPECT_EQ(BatchKeyOf(request), servable::kNoBatchKey);
}

TEST(BatchKeyOfRestRequest, AnInferRequestHasNoSignatureInItsBody) {
  EXPECT_EQ(KeyOf("{\"signature_name\": \"s\"}", metrics::Method::kRestModelInfer),
            servable::BatchKeyOf("m", ""));
}

}  // namespace
}  // namespace millpond::rest
