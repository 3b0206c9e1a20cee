// What PredictHandler offers to a model's reservoir, by a real server.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/request_reservoir.h"
#include "tests/native/served_models.h"

namespace millpond::testing {
namespace {

using servable::RequestReservoir;
using servable::RequestReservoirLimits;

class RequestSampling : public ServedModels {
 protected:
  RequestSampling() : reservoir_(std::make_shared<RequestReservoir>(RequestReservoirLimits())) {}

  void Publish(const Scripted& version) { ASSERT_TRUE(map_.Publish(version.entry).ok()); }

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

  static std::string RequestFor(const std::vector<std::string>& output_filter) {
    return PredictMessage(ModelSpecMessage("sampled"), {{"x", kTensor}}, output_filter);
  }

  const std::shared_ptr<RequestReservoir> reservoir_;
};

TEST_F(RequestSampling, EachSetOfOutputsThatIsAskedForIsTaken) {
  Publish(Scripted("sampled", 1, {}, reservoir_));
  Start();
  size_t sampled_count = 0;
  for (const auto& request : {RequestFor({}), RequestFor({"y"}), RequestFor({"x_back"})}) {
    ASSERT_TRUE(client_->Call(kPredictPath, request).status.ok());
    // One at a time: a request whose thread meets another in the reservoir goes without a sample.
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
      [&](const tf::RunContext&) {
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
    ASSERT_TRUE(map_.Retire("sampled", 1).ok());
    ASSERT_TRUE(version.entry->Quiesce(kForeverNs).value());
    ASSERT_TRUE(version.entry->Destroy().ok());
  }
  WaitUntilSampled(1);
  EXPECT_EQ(Sampled(), std::vector<std::string>{RequestFor({})});
}

}  // namespace
}  // namespace millpond::testing
