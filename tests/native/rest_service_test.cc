// Requests to models over HTTP: what is recorded, refused, waited for, traced and sampled.

#include "native/rest/rest_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/rest/content_coding.h"
#include "native/servable/request_reservoir.h"
#include "tests/native/http_server.h"

namespace millpond::rest {
namespace {

using base::Code;
using metrics::Method;
using testing::Http1Answer;
using testing::PostRequest;
using testing::RawHttp1;

class RestServiceTest : public testing::HttpServerTest {
 protected:
  static int64_t CountOf(const metrics::RequestRecorder& requests, Method method, Code code) {
    return requests.Of(method).Summary().count_by_code[static_cast<size_t>(code)];
  }
};

TEST_F(RestServiceTest, ARequestIsAnsweredByAVersionThatRecordsIt) {
  Start();
  const Http1Answer answer = Ask(Predict("m", "1, 2"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("content-type"), "application/json");
  EXPECT_EQ(answer.Header("x-millpond-model-name"), "m");
  EXPECT_EQ(answer.Header("x-millpond-model-version"), "7");
  EXPECT_EQ(CountOf(quick_->requests(), Method::kRestPredict, Code::kOk), 1);
  EXPECT_EQ(quick_->handle_count(), 0);
}

TEST_F(RestServiceTest, AFailureNamesTheVersionAndIsRecordedThere) {
  Start();
  const Http1Answer answer = Ask(PostRequest("/v1/models/m:predict", "{"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.Header("x-millpond-model-version"), "7");
  EXPECT_EQ(CountOf(quick_->requests(), Method::kRestPredict, Code::kInvalidArgument), 1);
}

TEST_F(RestServiceTest, ARequestThatFindsNoVersionIsRecordedAsUnmatched) {
  Start();
  const Http1Answer answer = Ask(Predict("none", "1"));
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.Header("x-millpond-model-version"), "");
  EXPECT_EQ(CountOf(*statistics_->unmatched(), Method::kRestPredict, Code::kNotFound), 1);
}

TEST_F(RestServiceTest, InferOfTheOpenProtocolIsAnswered) {
  Start();
  const std::string body =
      "{\"inputs\": [{\"name\": \"x\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": [5]}]}";
  const Http1Answer answer = Ask(PostRequest("/v2/models/m/versions/7/infer", body));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.body.find("\"data\":[5]"), std::string::npos) << answer.body;
  EXPECT_EQ(CountOf(quick_->requests(), Method::kRestModelInfer, Code::kOk), 1);
}

TEST_F(RestServiceTest, MetadataIsTheVersionsOwnAndRecordedThere) {
  quick_->SetMetadataJson("{\"m\":7}");
  Start();
  for (const char* const target : {"/v1/models/m/metadata", "/v1/models/m/versions/7/metadata"}) {
    const Http1Answer answer = Ask(testing::GetRequest(target));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "{\"m\":7}");
    EXPECT_EQ(answer.Header("content-type"), "application/json");
    EXPECT_EQ(answer.Header("cache-control"), "no-store");
  }
  EXPECT_EQ(Ask(testing::GetRequest("/v1/models/m/versions/8/metadata")).status, 404);
  EXPECT_EQ(Ask(testing::GetRequest("/v1/models/none/metadata")).status, 404);
  EXPECT_EQ(CountOf(quick_->requests(), Method::kGetModelMetadata, Code::kOk), 2);
  EXPECT_EQ(CountOf(*statistics_->unmatched(), Method::kGetModelMetadata, Code::kNotFound), 2);
}

// No thread takes what is left to Python here.
TEST_F(RestServiceTest, ADocumentIsAnsweredWithoutPython) {
  Start();
  server_->http_documents()->Set("/v1/models/m", {200, "{\"a\":1}"});
  server_->http_documents()->Set("/readyz", {503, "{}"});
  const Http1Answer answer = Ask(testing::GetRequest("/V1/models/%6d"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "{\"a\":1}");
  EXPECT_EQ(answer.Header("content-type"), "application/json");
  EXPECT_EQ(answer.Header("cache-control"), "no-store");
  EXPECT_EQ(Ask("HEAD /v1/models/m HTTP/1.1\r\nHost: h\r\n\r\n").Header("content-length"), "7");
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).status, 503);
  server_->http_documents()->Set("/readyz", {200, "{}"});
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).status, 200);
}

TEST_F(RestServiceTest, DocumentsAreAnsweredWhileTheMemoryIsFull) {
  constexpr int64_t kLimitBytes = 100'000;
  const auto budget = std::make_shared<base::ByteBudget>(kLimitBytes);
  options_.budget = budget;
  quick_->SetMetadataJson("{\"m\":7}");
  Start();
  server_->http_documents()->Set("/readyz", {200, "{}"});
  base::ByteBudget::Share taken(budget.get());
  ASSERT_TRUE(taken.Resize(kLimitBytes));
  EXPECT_EQ(Ask(Predict("m", "1")).status, 429);
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).status, 200);
  EXPECT_EQ(Ask(testing::GetRequest("/v1/models/m/metadata")).status, 200);
}

TEST_F(RestServiceTest, AnItemOfAListIsReplacedAlone) {
  Start();
  rpc::HttpDocuments* const documents = server_->http_documents();
  documents->ChangeList("/readyz", {200, "["}, {{0, "there is no list yet"}});
  EXPECT_FALSE(documents->Has("/readyz"));
  documents->SetList("/readyz", rpc::HttpListDocument({503, "["}, {"1", "2"}, "]"));
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).status, 503);
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).body, "[1,2]");
  documents->ChangeList("/readyz", {200, "[0,"}, {{1, "3"}, {2, "there is no such item"}});
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).status, 200);
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).body, "[0,1,3]");
  documents->SetList("/readyz", rpc::HttpListDocument({200, "{"}, {}, "}"));
  EXPECT_EQ(Ask(testing::GetRequest("/readyz")).body, "{}");
}

// A reader never sees an item beside the status from before it.
TEST_F(RestServiceTest, AnItemAndItsStatusChangeAtOnce) {
  Start();
  rpc::HttpDocuments* const documents = server_->http_documents();
  documents->SetList("/readyz", rpc::HttpListDocument({200, "["}, {"200"}, "]"));
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    while (!is_over) {
      for (const int status : {503, 200}) {
        documents->ChangeList("/readyz", {status, "["}, {{0, std::to_string(status)}});
      }
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const auto seen = documents->Find("/readyz");
    ASSERT_EQ(seen->body, "[" + std::to_string(seen->status) + "]");
  }
  is_over = true;
  writer.join();
}

TEST_F(RestServiceTest, PythonIsAskedForWhatHasNoDocument) {
  Start();
  server_->http_documents()->Set("/v1/models/m", {200, "{}"});
  server_->http_documents()->Remove("/v1/models/m");
  RawHttp1 client(port());
  client.Send(testing::GetRequest("/v1/models/m"));
  const auto call = server_->TakeHttpCall(/*is_probe=*/true, 4'000'000'000);
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->target(), "/v1/models/m");
  EXPECT_TRUE(call->ReplyHttp(404, "", "none").ok());
  EXPECT_EQ(client.Next().status, 404);
}

TEST_F(RestServiceTest, DocumentsAreAnsweredWhileAllThreadsRun) {
  options_.max_thread_count = 2;
  Start();
  server_->http_documents()->Set("/v2/health/ready", {200, "{}"});
  std::vector<std::unique_ptr<RawHttp1>> endless;
  for (int i = 0; i < 8; ++i) {
    endless.push_back(std::make_unique<RawHttp1>(port()));
    endless.back()->Send(Predict("held", "1"));
  }
  gate_.WaitForArrivals(1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Ask(testing::GetRequest("/v2/health/ready")).status, 200);
  }
}

TEST_F(RestServiceTest, ARequestWaitsForItsFirstVersionWithoutAThread) {
  options_.first_version_wait_ns = 60'000'000'000;
  map_.SetNotes("new", {"version 1 is loading", true, {}});
  Start();
  std::vector<std::unique_ptr<RawHttp1>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(std::make_unique<RawHttp1>(port()));
    waiting.back()->Send(Predict("new", "3"));
  }
  while (admission_->in_flight_count() < 8) std::this_thread::yield();
  EXPECT_EQ(Ask(Predict("m", "1")).status, 200);
  const auto entry = Publish("new", 1, {});
  for (const auto& client : waiting) EXPECT_EQ(client->Next().status, 200);
  EXPECT_EQ(CountOf(entry->requests(), Method::kRestPredict, Code::kOk), 8);
}

TEST_F(RestServiceTest, NoRequestMissesTheFirstVersionThatComesMeanwhile) {
  constexpr int kRoundCount = 30;
  constexpr int kModelCount = 10;
  options_.first_version_wait_ns = 60'000'000'000;
  Start();
  std::vector<std::unique_ptr<RawHttp1>> clients;
  for (int i = 0; i < kModelCount; ++i) clients.push_back(std::make_unique<RawHttp1>(port()));
  for (int round = 0; round < kRoundCount; ++round) {
    std::vector<std::shared_ptr<servable::ServableEntry>> entries;
    for (int i = 0; i < kModelCount; ++i) {
      const std::string name = "late-" + std::to_string(round) + "-" + std::to_string(i);
      map_.SetNotes(name, {"version 1 is loading", true, {}});
      clients[i]->Send(Predict(name, "1"));
      base::SleepNs((round * kModelCount + i) % 50 * 1'000);
      entries.push_back(Publish(name, 1, {}));
    }
    for (const auto& client : clients) ASSERT_EQ(client->Next().status, 200) << round;
    for (const auto& entry : entries) {
      ASSERT_TRUE(servable::RetireVersion(map_, entry->id().name, 1).ok());
    }
  }
}

TEST_F(RestServiceTest, ADrainEndsWaitsForAFirstVersionAndServesOthers) {
  options_.first_version_wait_ns = 60'000'000'000;
  map_.SetNotes("new", {"version 1 is loading", true, {}});
  Start();
  RawHttp1 waiting(port());
  waiting.Send(Predict("new", "3"));
  while (admission_->in_flight_count() < 1) std::this_thread::yield();
  server_->AskHttpToGo();
  const Http1Answer answer = waiting.Next();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.Header("retry-after"), "1");
  EXPECT_EQ(Ask(Predict("m", "1")).status, 200);
}

TEST_F(RestServiceTest, MoreThanAdmissionTakesAreRefusedAtOnce) {
  options_.admission = std::make_shared<servable::Admission>(1);
  Start();
  RawHttp1 running(port());
  running.Send(Predict("held", "1"));
  gate_.WaitForArrivals(1);
  const Http1Answer answer = Ask(Predict("m", "1"));
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.Header("retry-after"), "1");
  gate_.Open();
  EXPECT_EQ(running.Next().status, 200);
}

// All of them are under way to the end: none was given up to answer the others.
TEST_F(RestServiceTest, EndlessRequestsOfOneModelLeaveThreadsToOthers) {
  constexpr int kEndlessCount = 12;
  Start();
  std::vector<std::unique_ptr<RawHttp1>> endless;
  for (int i = 0; i < kEndlessCount; ++i) {
    endless.push_back(std::make_unique<RawHttp1>(port()));
    endless.back()->Send(Predict("held", "1"));
  }
  gate_.WaitForArrivals(2);
  while (admission_->in_flight_count() < kEndlessCount) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Ask(Predict("m", "1")).status, 200);
  EXPECT_EQ(Ask(testing::GetRequest("/healthz")).status, 200);
  EXPECT_EQ(admission_->in_flight_count(), kEndlessCount);
}

std::string Gzipped(const std::string& text) { return std::string(Gzip(text, {}).value().view()); }

TEST_F(RestServiceTest, CompressedBodiesAreInflatedWithinTheLimit) {
  options_.http->body_bytes_max = 1'000;
  Start();
  const auto status_of = [this](const std::string& rows) {
    return Ask(PostRequest("/v1/models/m:predict", Gzipped("{\"instances\": [" + rows + "]}"),
                           "Content-Encoding: gzip\r\n"))
        .status;
  };
  EXPECT_EQ(status_of("1, 2"), 200);
  EXPECT_EQ(status_of("1" + std::string(5'000, ' ')), 429);
  EXPECT_EQ(Ask(Predict("m", "1", "Content-Encoding: br\r\n")).status, 400);
}

TEST_F(RestServiceTest, OnlyLargeRepliesToClientsThatAcceptItAreCompressed) {
  Start();
  std::string rows = "1";
  for (int i = 0; i < 2'000; ++i) rows += ", 1";
  const auto coding_of = [&](const std::string& some, const std::string& accepted) {
    return Ask(Predict("m", some, "Accept-Encoding: " + accepted + "\r\n"))
        .Header("content-encoding");
  };
  EXPECT_EQ(coding_of(rows, "gzip, br"), "gzip");
  EXPECT_EQ(coding_of(rows, "gzip;q=0"), "");
  EXPECT_EQ(coding_of(rows, "br"), "");
  EXPECT_EQ(coding_of("1", "gzip"), "");
}

// A version that a failed request breaks is to be refused for it by no replay of that request.
TEST_F(RestServiceTest, OnlyAnsweredRequestsAreSampled) {
  const auto reservoir =
      std::make_shared<servable::RequestReservoir>(servable::RequestReservoirLimits());
  std::atomic<bool> fails{true};
  const auto run = [&fails](const tensor::RunContext&) {
    return fails ? base::Internal("the run broke") : base::Status();
  };
  const auto entry = Publish("sampled", 1, run, reservoir);
  Start();
  // One connection, which is answered in order.
  RawHttp1 client(port());
  const auto ask = [&](const std::string& request) {
    client.Send(request);
    return client.Next().status;
  };
  EXPECT_EQ(ask(Predict("sampled", "1, 2, 3")), 500);
  EXPECT_EQ(ask(PostRequest("/v1/models/sampled:predict", "{")), 400);
  fails = false;
  EXPECT_EQ(ask(Predict("sampled", "4")), 200);
  while (reservoir->Statistics().request_count == 0) std::this_thread::yield();
  const auto kept = reservoir->Requests(base::MonotonicNs());
  ASSERT_EQ(kept.size(), 1);
  EXPECT_NE(kept[0].bytes.find(std::string("\4\0\0\0\0\0\0\0", 8)), std::string::npos);
}

TEST_F(RestServiceTest, ASampledRequestIsOfferedAsASpan) {
  const auto spans = std::make_shared<metrics::SpanBuffer>(metrics::SpanBuffer::Limits{10, 10});
  options_.spans = spans;
  Start();
  const std::string trace =
      "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
  EXPECT_EQ(Ask(Predict("m", "1", trace)).status, 200);
  EXPECT_EQ(Ask(Predict("m", "1")).status, 200);
  std::vector<metrics::RequestSpan> taken;
  while (taken.empty()) taken = spans->Take(10);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].method, Method::kRestPredict);
  EXPECT_EQ(taken[0].model, "m");
  EXPECT_EQ(taken[0].version, 7);
  EXPECT_GT(taken[0].request_bytes, 0U);
  EXPECT_GT(taken[0].response_bytes, 0U);
}

TEST_F(RestServiceTest, AMessageAsLongAsTheBodyIsCut) {
  Start();
  const Http1Answer answer = Ask(Predict("m", "\"" + std::string(100'000, 'a') + "\""));
  EXPECT_EQ(answer.status, 400);
  EXPECT_LT(answer.body.size(), 10'000U);
}

TEST_F(RestServiceTest, CorsHeadersAreOnEachAnswer) {
  options_.http->has_cors = true;
  Start();
  for (const std::string& request : {Predict("m", "1"), Predict("none", "1")}) {
    EXPECT_EQ(Ask(request).Header("access-control-allow-origin"), "*");
  }
}

// --- What a batch needs to know, without a server ---

servable::BatchKey KeyOf(std::string_view body, Method method = Method::kRestPredict) {
  RestTarget target;
  target.method = method;
  target.model.name = "m";
  return BatchKeyOf(target, body);
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

TEST(BatchKeyOfRestRequest, ABodyThatEndsWithinTheNameMeansTheDefault) {
  for (const std::string_view body :
       {"{\"signature_name\"", "{\"signature_name\":", "{\"signature_name\": \"s",
        "{\"signature_name\" 7", "{\"signature_name\": 7"}) {
    EXPECT_EQ(KeyOf(body), servable::BatchKeyOf("m", "")) << body;
  }
}

TEST(BatchKeyOfRestRequest, AnInferRequestHasNoSignatureInItsBody) {
  EXPECT_EQ(KeyOf("{\"signature_name\": \"s\"}", Method::kRestModelInfer),
            servable::BatchKeyOf("m", ""));
}

}  // namespace
}  // namespace millpond::rest
