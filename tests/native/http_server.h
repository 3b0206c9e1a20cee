#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "native/rest/rest_service.h"
#include "native/rpc/server.h"
#include "native/servable/serving_map.h"
#include "native/tensor/dtype.h"
#include "tests/native/fake_servable.h"
#include "tests/native/group_count.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/raw_http1.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"

namespace millpond::testing {

// A server of HTTP. "m", version 7, answers with the integers that it gets; "held", version 1, does
// so once the gate is open. No gRPC library, so ThreadSanitizer sees all code.
class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.thread_count = ThreadCount();
    options_.thread_group_count = GroupCount();
    options_.max_thread_count = 4;
    options_.statistics = statistics_;
    options_.admission = admission_;
    options_.budget = budget_;
    options_.make_http_routes = [](const rpc::ModelMethodParts& parts,
                                   const rpc::HttpDocuments* documents,
                                   const rpc::HttpOptions& http) {
      return std::make_unique<rest::RestService>(parts, documents,
                                                 static_cast<size_t>(http.body_bytes_max));
    };
    options_.http = rpc::HttpOptions();
    quick_ = Publish("m", 7, {});
    held_ = Publish("held", 1, [this](const tensor::RunContext& run) { return gate_.Pass(run); });
  }
  ~HttpServerTest() override {
    gate_.Open();
    if (server_ == nullptr) return;
    server_->Shutdown(0);
    server_->ShutdownHttp(0);
  }

  void Start() {
    server_ = std::make_unique<rpc::Server>(&map_, options_);
    const base::Status started = server_->StartHttp({"127.0.0.1:0"});
    ASSERT_TRUE(started.ok()) << started.message();
  }

  std::shared_ptr<servable::ServableEntry> Publish(
      const std::string& name, int64_t version, Script script,
      std::shared_ptr<servable::RequestReservoir> reservoir = nullptr) {
    tensor::TensorSpec spec{"x", "x:0", tensor::dtype::kInt64, true, {-1}};
    tensor::Signature signature{"serving_default", "", {spec}, {spec}};
    auto servable = std::make_unique<FakeServable>(
        servable::ServableId{name, version}, std::vector<tensor::Signature>{signature},
        AfterScript(std::move(script), [](const FakeRun& run) { return EchoInputs(run); }));
    auto entry =
        std::make_shared<servable::ServableEntry>(std::move(servable), std::move(reservoir));
    EXPECT_TRUE(servable::PublishHighest(map_, entry).ok());
    return entry;
  }

  int port() const { return server_->http_port(); }

  static std::string Predict(const std::string& model, const std::string& rows,
                             const std::string& more_headers = "") {
    return PostRequest("/v1/models/" + model + ":predict", "{\"instances\": [" + rows + "]}",
                       more_headers);
  }
  Http1Answer Ask(const std::string& request) const {
    RawHttp1 client(port());
    client.Send(request);
    return client.Next(request.compare(0, 5, "HEAD ") == 0);
  }

  Gate gate_;
  servable::ServingMap map_;
  std::shared_ptr<servable::ServableEntry> quick_;
  std::shared_ptr<servable::ServableEntry> held_;
  const std::shared_ptr<metrics::RequestStatistics> statistics_ =
      std::make_shared<metrics::RequestStatistics>(/*now_ns=*/0);
  const std::shared_ptr<servable::Admission> admission_ = std::make_shared<servable::Admission>();
  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>();
  rpc::ServerOptions options_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace millpond::testing
