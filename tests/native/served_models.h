#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/rpc/server.h"
#include "native/servable/serving_map.h"
#include "tests/native/group_count.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_client.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/units.h"

namespace millpond::testing {

inline constexpr char kPredictPath[] = "/tensorflow.serving.PredictionService/Predict";
inline constexpr char kMetadataPath[] = "/tensorflow.serving.PredictionService/GetModelMetadata";
inline constexpr char kCheckPath[] = "/grpc.health.v1.Health/Check";
inline constexpr char kWatchPath[] = "/grpc.health.v1.Health/Watch";
inline constexpr char kRarePath[] = "/tensorflow.serving.ModelService/GetModelStatus";

inline constexpr char kTensor[] = "the bytes of a tensor";

// A server on a free port, with a client of it. "m" is a model that answers at once; the runs of
// "held" and "also_held" wait for the gate.
class ServedModels : public ::testing::Test {
 protected:
  ServedModels()
      : quick_("m", 7),
        held_("held", 1, [this](const tensor::RunContext& run) { return gate_.Pass(run); }),
        also_held_("also_held", 1,
                   [this](const tensor::RunContext& run) { return gate_.Pass(run); }) {
    EXPECT_TRUE(servable::PublishHighest(map_, quick_.entry).ok());
    EXPECT_TRUE(servable::PublishHighest(map_, held_.entry).ok());
    EXPECT_TRUE(servable::PublishHighest(map_, also_held_.entry).ok());
    options_.addresses = {"127.0.0.1:0"};
    options_.thread_count = 2;
    options_.thread_group_count = GroupCount();
    options_.rare_methods = {kRarePath};
    options_.statistics = statistics_;
  }
  ~ServedModels() override {
    gate_.Open();
    if (server_ != nullptr) server_->Shutdown(0);
  }

  void Start() {
    server_ = std::make_unique<rpc::Server>(&map_, options_);
    const base::Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started.message();
    client_.emplace(server_->port());
  }

  static std::string Request(const std::string& name, std::optional<int64_t> version = {}) {
    return PredictMessage(ModelSpecMessage(name, version), {{"x", kTensor}});
  }

  RawClient::Reply Predict(const std::string& name) {
    return client_->Call(kPredictPath, Request(name));
  }

  // Starts `count` runs of "held" and "also_held" in turn, because one model gets only a share of
  // the threads. Returns once all of them run.
  std::vector<std::future<RawClient::Reply>> BeginHeld(int count) {
    const int before_count = gate_.arrived_count();
    std::vector<std::future<RawClient::Reply>> replies;
    for (int i = 0; i < count; ++i) {
      replies.push_back(client_->Begin(kPredictPath, Request(i % 2 == 0 ? "held" : "also_held")));
    }
    gate_.WaitForArrivals(before_count + count);
    return replies;
  }

  // Starts a run of each of `count` models, and returns once all of them run. Models whose runs are
  // long leave threads to others, so that it takes so many models to have all threads.
  std::vector<std::future<RawClient::Reply>> BeginHeldOfAll(int count) {
    const int before_count = gate_.arrived_count();
    std::vector<std::future<RawClient::Reply>> replies;
    for (int i = 0; i < count; ++i) {
      replies.push_back(client_->Begin(kPredictPath, Request(HeldName(i))));
    }
    gate_.WaitForArrivals(before_count + count);
    return replies;
  }

  // Returns the name of a model whose runs wait for the gate: another one for each number.
  std::string HeldName(int number) {
    if (number == 0) return "held";
    if (number == 1) return "also_held";
    const std::string name = "held_" + std::to_string(number);
    if (more_held_.count(number) == 0) {
      auto made = std::make_unique<Scripted>(
          name, 1, [this](const tensor::RunContext& run) { return gate_.Pass(run); });
      EXPECT_TRUE(servable::PublishHighest(map_, made->entry).ok());
      more_held_[number] = std::move(made);
    }
    return name;
  }

  // Predict requests that reached no version: an unknown model, or bytes that do not parse.
  metrics::RequestSnapshot UnmatchedRequests() const {
    return statistics_->unmatched()->Of(metrics::Method::kPredict).Summary();
  }

  static void WaitUntilUnpinned(const servable::ServableEntry& entry) {
    while (entry.handle_count() > 0) std::this_thread::yield();
  }

  Gate gate_;
  Scripted quick_;
  Scripted held_;
  Scripted also_held_;
  std::map<int, std::unique_ptr<Scripted>> more_held_;
  servable::ServingMap map_;
  const std::shared_ptr<metrics::RequestStatistics> statistics_ =
      std::make_shared<metrics::RequestStatistics>(/*now_ns=*/0);
  rpc::ServerOptions options_;
  std::unique_ptr<rpc::Server> server_;
  std::optional<RawClient> client_;
};

}  // namespace millpond::testing
