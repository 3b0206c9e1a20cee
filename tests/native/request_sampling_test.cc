// The samples that each method offers to a model's reservoir, through a real server.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/record_queue.h"
#include "native/servable/request_log.h"
#include "native/servable/request_reservoir.h"
#include "tests/native/echo_servable.h"
#include "tests/native/infer_messages.h"
#include "tests/native/queued_records.h"
#include "tests/native/served_models.h"
#include "tests/native/serving_maps.h"
#include "tests/native/tf_example_messages.h"

namespace millpond::testing {
namespace {

using servable::RequestReservoir;
using servable::RequestReservoirLimits;

class RequestSampling : public ServedModels {
 protected:
  RequestSampling() : reservoir_(std::make_shared<RequestReservoir>(RequestReservoirLimits())) {}

  void Publish(const Scripted& version) {
    ASSERT_TRUE(servable::PublishHighest(map_, version.entry).ok());
  }

  std::vector<std::string> Sampled() {
    std::vector<std::string> sampled;
    for (auto& request : reservoir_->Requests(base::MonotonicNs())) {
      sampled.push_back(request.bytes);
    }
    return sampled;
  }
  // A request is taken after its reply has gone out.
  void WaitUntilSampled(size_t count) {
    while (reservoir_->Statistics().request_count < count) std::this_thread::yield();
  }

  void Publish(std::unique_ptr<servable::Servable> servable) {
    const auto entry = std::make_shared<servable::ServableEntry>(std::move(servable), reservoir_);
    ASSERT_TRUE(servable::PublishHighest(map_, entry).ok());
  }
  // Replaces "m" of ServedModels by a model that classifies and regresses examples.
  void PublishExamples() {
    ASSERT_TRUE(servable::RetireVersion(map_, "m", 7).ok());
    auto examples = std::make_unique<ExampleServable>();
    examples->Add("serving_default", {"classes"}, {StringTensor({"low", "high"}, {2, 1})});
    examples->Add("number", {"outputs"}, {FloatTensor({0.5, 1}, {2})});
    Publish(std::move(examples));
  }
  static WireMessage ExampleSpec(const std::string& signature_name) {
    return ModelSpecMessage("m", {}, signature_name);
  }
  static std::string OnExamples(const std::string& signature_name) {
    return ExampleMessage(ExampleSpec(signature_name), ExampleListInput({"one", "two"}));
  }
  // Returns the sample of a request of these examples; strings are written as in opaque_tensors.h.
  static std::string KeptOf(const std::string& signature_name) {
    return PredictMessage(ExampleSpec(signature_name), {{"inputs", "onetwo"}});
  }

  static std::string RequestFor(const std::vector<std::string>& output_filter) {
    return PredictMessage(ModelSpecMessage("sampled"), {{"x", kTensor}}, output_filter);
  }

  const std::shared_ptr<RequestReservoir> reservoir_;
};

TEST_F(RequestSampling, EachRequestedSetOfOutputsIsSampled) {
  Publish(Scripted("sampled", 1, {}, reservoir_));
  Start();
  size_t sampled_count = 0;
  for (const auto& request : {RequestFor({}), RequestFor({"y"}), RequestFor({"x_back"})}) {
    ASSERT_TRUE(client_->Call(kPredictPath, request).status.ok());
    // Sent one at a time, because a request that meets another one in the reservoir goes without a
    // sample.
    WaitUntilSampled(++sampled_count);
  }
  const auto sampled = Sampled();
  EXPECT_EQ(
      std::multiset<std::string>(sampled.begin(), sampled.end()),
      (std::multiset<std::string>{RequestFor({}), RequestFor({"y"}), RequestFor({"x_back"})}));
}

TEST_F(RequestSampling, ARequestThatFailsIsNotTaken) {
  bool fails = true;
  Publish(Scripted(
      "sampled", 1,
      [&](const tensor::RunContext&) {
        return fails ? base::InvalidArgument("no such row") : base::Status();
      },
      reservoir_));
  Start();
  EXPECT_FALSE(client_->Call(kPredictPath, RequestFor({})).status.ok());
  EXPECT_FALSE(client_->Call(kPredictPath, RequestFor({"q"})).status.ok());
  fails = false;
  EXPECT_TRUE(client_->Call(kPredictPath, RequestFor({"y"})).status.ok());
  WaitUntilSampled(1);
  EXPECT_EQ(Sampled(), std::vector<std::string>{RequestFor({"y"})});
}

TEST_F(RequestSampling, TheReservoirOutlivesItsVersion) {
  {
    const Scripted version("sampled", 1, {}, reservoir_);
    Publish(version);
    Start();
    ASSERT_TRUE(client_->Call(kPredictPath, RequestFor({})).status.ok());
    ASSERT_TRUE(servable::RetireVersion(map_, "sampled", 1).ok());
    ASSERT_TRUE(version.entry->Quiesce(kForeverNs).value());
    ASSERT_TRUE(version.entry->Destroy().ok());
  }
  WaitUntilSampled(1);
  EXPECT_EQ(Sampled(), std::vector<std::string>{RequestFor({})});
}

TEST_F(RequestSampling, AnsweredRequestIsLoggedAndAFailedOneIsNot) {
  const auto queue = std::make_shared<servable::RecordQueue>(size_t{1} << 16);
  const auto log = std::make_shared<servable::RequestLog>(queue, 1);
  servable::RequestLogSettings settings;
  settings.sampling_rate = 1;
  settings.inputs.are_all = settings.outputs.are_all = true;
  log->Set(settings);
  bool fails = true;
  const auto entry = std::make_shared<servable::ServableEntry>(
      std::make_unique<ScriptedServable>(servable::ServableId{"logged", 1},
                                         [&](const tensor::RunContext&) {
                                           return fails ? base::InvalidArgument("no such row")
                                                        : base::Status();
                                         }),
      nullptr, log);
  ASSERT_TRUE(servable::PublishHighest(map_, entry).ok());
  Start();
  const std::string request = PredictMessage(ModelSpecMessage("logged"), {{"x", kTensor}});
  EXPECT_FALSE(client_->Call(kPredictPath, request).status.ok());
  fails = false;
  const auto answered = client_->Call(kPredictPath, request);
  ASSERT_TRUE(answered.status.ok());
  // A request is logged after its reply has gone out.
  std::vector<std::string> records;
  while (records.empty()) {
    TakeAll(*queue, [&](std::string_view record) { records.emplace_back(record); });
    std::this_thread::yield();
  }
  EXPECT_EQ(records.size(), 1);
  EXPECT_NE(records[0].find(kTensor), std::string::npos);
  EXPECT_EQ(log->Statistics().sampled_count, 1);
  // The version is free once the record is there.
  while (entry->handle_count() > 0) std::this_thread::yield();
}

TEST_F(RequestSampling, ModelInferIsSampledAsItsPredictRequest) {
  Publish(std::make_unique<EchoServable>());
  Start();
  const std::string rows = RawOf<float>({1, 2, 3});
  const std::string request = WireMessage()
                                  .Bytes(1, "echo")
                                  .Message(5, InferInput("words", "BYTES", {1}))
                                  .Message(5, InferInput("rows", "FP32", {1, 3}))
                                  .Message(6, WireMessage().Bytes(1, "b"))
                                  .Bytes(7, RawOf(std::vector<std::string>{"word"}))
                                  .Bytes(7, rows)
                                  .bytes();
  ASSERT_TRUE(client_->Call("/inference.GRPCInferenceService/ModelInfer", request).status.ok());
  WaitUntilSampled(1);
  const auto spec = ModelSpecMessage("echo", {}, "serving_default");
  EXPECT_EQ(
      Sampled(),
      (std::vector<std::string>{PredictMessage(spec, {{"rows", rows}, {"words", "word"}}, {"b"})}));
}

TEST_F(RequestSampling, ClassifyAndRegressAreSampledWithTheirExamples) {
  PublishExamples();
  Start();
  const std::string service = "/tensorflow.serving.PredictionService/";
  ASSERT_TRUE(client_->Call((service + "Classify").c_str(), OnExamples("")).status.ok());
  WaitUntilSampled(1);
  EXPECT_EQ(Sampled(), std::vector<std::string>{KeptOf("serving_default")});
  ASSERT_TRUE(client_->Call((service + "Regress").c_str(), OnExamples("number")).status.ok());
  WaitUntilSampled(2);
  EXPECT_EQ(Sampled()[0], KeptOf("number"));
}

TEST_F(RequestSampling, EachTaskOfAMultiInferenceRequestIsTaken) {
  PublishExamples();
  Start();
  const std::string request =
      WireMessage()
          .Message(1, WireMessage()
                          .Message(1, ExampleSpec("number"))
                          .Bytes(2, "tensorflow/serving/regress"))
          .Message(
              1, WireMessage().Message(1, ExampleSpec("")).Bytes(2, "tensorflow/serving/classify"))
          .Message(2, ExampleListInput({"one", "two"}))
          .bytes();
  const char* const path = "/tensorflow.serving.PredictionService/MultiInference";
  ASSERT_TRUE(client_->Call(path, request).status.ok());
  WaitUntilSampled(2);
  const auto sampled = Sampled();
  EXPECT_EQ(std::multiset<std::string>(sampled.begin(), sampled.end()),
            (std::multiset<std::string>{KeptOf("number"), KeptOf("serving_default")}));
  while (reservoir_->joint()->Statistics().request_count < 1) std::this_thread::yield();
  const auto joint = reservoir_->joint()->Requests(base::MonotonicNs());
  ASSERT_EQ(joint.size(), 1);
  EXPECT_EQ(joint[0].bytes, request);
}

TEST_F(RequestSampling, FailedRequestsAreNotSampled) {
  ASSERT_TRUE(servable::RetireVersion(map_, "m", 7).ok());
  auto examples = std::make_unique<ExampleServable>();
  // The model runs, and its output is not in the form of classes.
  examples->Add("broken", {"classes"}, {FloatTensor({1}, {1})});
  examples->Add("serving_default", {"classes"}, {StringTensor({"low", "high"}, {2, 1})});
  Publish(std::move(examples));
  Start();
  const char* const path = "/tensorflow.serving.PredictionService/Classify";
  EXPECT_FALSE(client_->Call(path, OnExamples("broken")).status.ok());
  EXPECT_TRUE(client_->Call(path, OnExamples("")).status.ok());
  WaitUntilSampled(1);
  EXPECT_EQ(Sampled(), std::vector<std::string>{KeptOf("serving_default")});
}

}  // namespace
}  // namespace millpond::testing
