// Connections over HTTP/1.1 as clients use and abuse them: pipelines, halves, pauses and stops.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/http_server.h"
#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

using testing::GetRequest;
using testing::Http1Answer;
using testing::PostRequest;
using testing::RawHttp1;

class HttpConnectionsTest : public testing::HttpServerTest {
 protected:
  static std::string BodyOf(int64_t row) {
    return "{\n    \"predictions\": [" + std::to_string(row) + "\n    ]\n}";
  }
  static int64_t RowOf(const Http1Answer& answer) {
    const size_t at = answer.body.find('[');
    return at == std::string::npos ? -1 : std::atoll(answer.body.c_str() + at + 1);
  }
};

TEST_F(HttpConnectionsTest, EachOfManyPipelinedRequestsIsAnsweredInOrder) {
  Start();
  constexpr int kCount = 3'000;
  RawHttp1 client(port());
  std::thread sender([&] {
    std::string all;
    for (int i = 0; i < kCount; ++i) all += Predict("m", std::to_string(i));
    EXPECT_TRUE(client.Send(all));
  });
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(RowOf(client.Next()), i);
  sender.join();
}

// Random pieces of random requests on several connections at once: some end a read within a head,
// some bring a part of the next request before the answer to the last one.
TEST_F(HttpConnectionsTest, RandomPiecesOfPipelinesLoseNoRequest) {
  Start();
  constexpr int kClients = 4;
  constexpr int kRequests = 150;
  testing::RunTogether(kClients, [&](int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::string all;
    for (int i = 0; i < kRequests; ++i) {
      switch (random() % 4) {
        case 0:
          all += GetRequest("/healthz");
          break;
        case 1:
          all +=
              "POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
              "e\r\n{\"instances\":[\r\n2\r\n7]\r\n1\r\n}\r\n0\r\nT: t\r\n\r\n";
          break;
        default:
          all += Predict("m", std::string(random() % 3'000, ' ') + "7");
      }
    }
    RawHttp1 client(port());
    std::atomic<int> answered_count{0};
    std::thread sender([&] {
      for (size_t at = 0; at < all.size();) {
        const size_t size = 1 + random() % (random() % 8 == 0 ? 5'000 : 200);
        if (!client.Send(all.substr(at, size))) break;
        at += size;
        if (random() % 16 == 0) std::this_thread::yield();
      }
    });
    for (int i = 0; i < kRequests; ++i) answered_count += client.Next().status == 200 ? 1 : 0;
    sender.join();
    EXPECT_EQ(answered_count, kRequests);
  });
}

TEST_F(HttpConnectionsTest, InputThatCameWhileAnAnswerWasDueIsReadAfterIt) {
  Start();
  RawHttp1 client(port());
  client.Send(Predict("held", "1"));
  gate_.WaitForArrivals(1);
  // It comes while nothing is read.
  client.Send(Predict("m", "2"));
  gate_.Open();
  EXPECT_EQ(RowOf(client.Next()), 1);
  EXPECT_EQ(RowOf(client.Next()), 2);
}

TEST_F(HttpConnectionsTest, ClientThatHasEndedItsSideGetsItsAnswer) {
  Start();
  RawHttp1 client(port());
  client.Send(Predict("m", "1") + Predict("held", "2"));
  client.EndWrites();
  EXPECT_EQ(RowOf(client.Next()), 1);
  gate_.WaitForArrivals(1);
  gate_.Open();
  EXPECT_EQ(RowOf(client.Next()), 2);
  EXPECT_TRUE(client.IsClosed());
}

TEST_F(HttpConnectionsTest, RunOfAClientThatIsGoneEnds) {
  Start();
  {
    RawHttp1 client(port());
    client.Send(Predict("held", "1"));
    gate_.WaitForArrivals(1);
  }
  // The gate stays closed: only its cancellation ends the run. The server looks for it each second.
  while (held_->handle_count() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(HttpConnectionsTest, LargeBodyComesInManyReads) {
  Start();
  std::string rows = "1";
  for (int i = 2; i <= 100'000; ++i) rows += ", " + std::to_string(i);
  const Http1Answer answer = Ask(Predict("m", rows));
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.body.find("100000"), std::string::npos);
}

TEST_F(HttpConnectionsTest, ExpectedContinueComesBeforeTheBody) {
  Start();
  RawHttp1 client(port());
  client.Send(
      "POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
      "Content-Length: 17\r\n\r\n");
  EXPECT_EQ(client.Next().status, 100);
  client.Send("{\"instances\":[1]}");
  EXPECT_EQ(client.Next().status, 200);
}

TEST_F(HttpConnectionsTest, RefusedHeadGetsNoContinue) {
  Start();
  RawHttp1 client(port());
  client.Send(
      "POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
      "Content-Length: 999999999999\r\n\r\n");
  EXPECT_EQ(client.Next().status, 413);
  EXPECT_TRUE(client.IsClosed());
}

TEST_F(HttpConnectionsTest, PartsWithoutAnEndAreRefused) {
  Start();
  const std::string head = "POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::pair<std::string, std::string>> cases = {{chunked + "0\r\n", "a: b\r\n"},
                                                                  {chunked + "0\r\na: ", "b"},
                                                                  {chunked + "2;", "x"},
                                                                  {chunked, "0"},
                                                                  {head, "a: b\r\n"},
                                                                  {head + "a: ", "b"},
                                                                  {"GET /", "a"},
                                                                  {"", "\r\n"}};
  // At once, because the server lets each client send for a second after its answer.
  testing::RunTogether(static_cast<int>(cases.size()), [&](int thread) {
    const auto& [begin, endless] = cases[static_cast<size_t>(thread)];
    RawHttp1 client(port());
    std::string part;
    while (part.size() < 4'096) part += endless;
    client.Send(begin);
    bool is_open = true;
    for (int i = 0; is_open && i < 5'000; ++i) is_open = client.Send(part);
    EXPECT_FALSE(is_open) << begin << endless;
  });
  EXPECT_EQ(Ask(GetRequest("/healthz")).status, 200);
}

TEST_F(HttpConnectionsTest, HeadHasTheLengthAndNoBody) {
  Start();
  RawHttp1 client(port());
  client.Send("HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.Next(/*is_head=*/true).Header("content-length"), "3");
  client.Send(GetRequest("/healthz"));
  EXPECT_EQ(client.Next().body, "ok\n");
}

TEST_F(HttpConnectionsTest, ForeignHostIsMisdirected) {
  options_.http->hosts = {"box"};
  Start();
  const auto status_of = [this](const std::string& host) {
    return Ask("GET /healthz HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  EXPECT_EQ(status_of("evil.example"), 421);
  EXPECT_EQ(status_of("box:80"), 200);
  EXPECT_EQ(status_of("127.0.0.1"), 200);
  EXPECT_EQ(status_of("localhost"), 200);
}

TEST_F(HttpConnectionsTest, AtTheLimitAnIdleConnectionMakesPlace) {
  options_.http->connection_count_max = 4;
  Start();
  RawHttp1 idle(port());
  idle.Send(GetRequest("/healthz"));
  EXPECT_EQ(idle.Next().status, 200);
  std::vector<std::unique_ptr<RawHttp1>> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(std::make_unique<RawHttp1>(port()));
    others.back()->Send(GetRequest("/healthz"));
    EXPECT_EQ(others.back()->Next().status, 200);
  }
  // The server is full, and all are served: the oldest connection leaves once it is idle.
  while (!idle.HasInput()) ASSERT_EQ(Ask(GetRequest("/healthz")).status, 200);
  EXPECT_TRUE(idle.IsClosed());
  EXPECT_FALSE(others.back()->HasInput()) << "closed too";
}

TEST_F(HttpConnectionsTest, AProbePassesClientsThatNeverAsk) {
  options_.http->connection_count_max = 1;
  Start();
  // More than the limit and all that is kept beyond it, at once.
  std::vector<std::unique_ptr<RawHttp1>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<RawHttp1>(port()));
    silent.back()->Send("GET /");
  }
  EXPECT_EQ(Ask(GetRequest("/healthz")).status, 200);
}

TEST_F(HttpConnectionsTest, OptionsOfTheServerNameItsMethods) {
  Start();
  EXPECT_EQ(Ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").Header("allow"),
            "GET, HEAD, POST, OPTIONS");
}

TEST_F(HttpConnectionsTest, AtTheLimitTheSlowestBodyMakesPlace) {
  options_.http->connection_count_max = 2;
  Start();
  const std::string head =
      "POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n";
  RawHttp1 slow(port());
  slow.Send(head + "{");
  RawHttp1 faster(port());
  faster.Send(head + "{          ");
  // A body that has just begun is not slow.
  while (!slow.HasInput()) ASSERT_EQ(Ask(GetRequest("/healthz")).status, 200);
  const Http1Answer answer = slow.Next();
  EXPECT_EQ(answer.status, 408);
  EXPECT_NE(answer.body.find("came slowest"), std::string::npos);
}

TEST_F(HttpConnectionsTest, BodyThatDoesNotComeInTimeIsRefused) {
  options_.http->request_ns_max = 500'000'000;
  Start();
  RawHttp1 client(port());
  client.Send("POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n{");
  const Http1Answer answer = client.Next();
  EXPECT_EQ(answer.status, 504);
  EXPECT_NE(answer.body.find("rest_api_timeout_in_ms"), std::string::npos);
  EXPECT_TRUE(client.IsClosed());
}

TEST_F(HttpConnectionsTest, RequestThatTakesTooLongIsAnswered) {
  options_.http->request_ns_max = 300'000'000;
  Start();
  const Http1Answer answer = Ask(Predict("held", "1"));
  EXPECT_EQ(answer.status, 504);
}

TEST_F(HttpConnectionsTest, WithoutMemoryABodyIsRefusedBeforeItComes) {
  options_.budget = std::make_shared<base::ByteBudget>(100'000);
  Start();
  RawHttp1 client(port());
  client.Send("POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
  EXPECT_EQ(client.Next().status, 429);
  EXPECT_EQ(Ask(GetRequest("/healthz")).status, 200);
}

TEST_F(HttpConnectionsTest, AllBytesOfClientsGoBackToTheBudget) {
  Start();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Ask(Predict("m", "1")).status, 200);
  server_->ShutdownHttp(1'000'000'000);
  server_.reset();
  EXPECT_EQ(budget_->in_use_bytes(), 0);
}

// --- stops ---

TEST_F(HttpConnectionsTest, StopAnswersWhatRunsAndClosesTheRest) {
  Start();
  RawHttp1 idle(port());
  idle.Send(GetRequest("/healthz"));
  EXPECT_EQ(idle.Next().status, 200);
  RawHttp1 running(port());
  running.Send(Predict("held", "5"));
  gate_.WaitForArrivals(1);
  server_->Shutdown(0);
  std::thread stop([this] { EXPECT_TRUE(server_->ShutdownHttp(10'000'000'000)); });
  EXPECT_TRUE(idle.IsClosed());
  gate_.Open();
  const Http1Answer answer = running.Next();
  EXPECT_EQ(RowOf(answer), 5);
  EXPECT_EQ(answer.Header("connection"), "close");
  EXPECT_TRUE(running.IsClosed());
  stop.join();
}

TEST_F(HttpConnectionsTest, DrainAsksClientsToGoAndAnswersThemAll) {
  Start();
  server_->AskHttpToGo();
  const Http1Answer answer = Ask(Predict("m", "1"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("connection"), "close");
  EXPECT_EQ(Ask(GetRequest("/healthz")).Header("connection"), "close");
}

TEST_F(HttpConnectionsTest, StopCutsLongRunsShort) {
  Start();
  RawHttp1 running(port());
  running.Send(Predict("held", "5"));
  gate_.WaitForArrivals(1);
  EXPECT_FALSE(server_->ShutdownHttp(10'000'000));
  while (held_->handle_count() > 0) std::this_thread::yield();
}

// Clients that connect, send and vanish while the server stops: under ThreadSanitizer.
TEST_F(HttpConnectionsTest, ClientsComeAndGoDuringAStop) {
  Start();
  gate_.Open();
  std::atomic<bool> is_over{false};
  std::atomic<int> client_count{0};
  const int at = port();
  std::vector<std::thread> clients;
  for (int number = 0; number < 3; ++number) {
    clients.emplace_back([&, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      while (!is_over) {
        RawHttp1 client(at);
        ++client_count;
        const std::string request = Predict(random() % 2 == 0 ? "m" : "held", "1");
        if (!client.Send(request.substr(0, 1 + random() % request.size()))) continue;
        if (random() % 2 == 0) client.Send(request);
      }
    });
  }
  while (client_count < 300) std::this_thread::yield();
  is_over = true;
  for (std::thread& client : clients) client.join();
  server_->Shutdown(0);
  server_->ShutdownHttp(2'000'000'000);
  server_.reset();
  EXPECT_EQ(budget_->in_use_bytes(), 0);
}

}  // namespace
}  // namespace millpond::rpc
