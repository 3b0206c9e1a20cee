// The threads that run requests, over a network that does what the test says.

#include "native/rpc/request_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/metrics/request_statistics.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/predict_service.h"
#include "native/rpc/stream_call.h"
#include "native/servable/batching_servable.h"
#include "native/servable/serving_map.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_http2.h"
#include "tests/native/row_servable.h"
#include "tests/native/serving_maps.h"

namespace millpond::rpc {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// Once both threads wait, one of them gets the first request, and the other waits on, as one that
// has no core to run on. A look gets the second request, and so does a wait of both threads.
class TwoRequests final : public EventSource {
 public:
  TwoRequests(std::shared_ptr<RunnableCall> first, std::shared_ptr<RunnableCall> second)
      : calls_{std::move(first), std::move(second)} {}

  void HandleEvents(int timeout_ms, ReceiveSpace*,
                    std::vector<std::shared_ptr<RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (timeout_ms != 0) {
      waiting_count_ += 1;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_over_ || (waiting_count_ == 2 && !calls_.empty()); });
      waiting_count_ -= 1;
    }
    if (!calls_.empty()) {
      to_run->push_back(std::move(calls_.front()));
      calls_.pop_front();
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
  }
  void Wake() override {}
  void CheckTimes(int64_t) override {}
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<RunnableCall>> calls_;
  int waiting_count_ = 0;
  bool is_over_ = false;
};

class RequestThreadsTest : public ::testing::Test {
 protected:
  RequestThreadsTest() {
    auto batching = std::make_unique<servable::BatchingServable>(
        std::make_unique<testing::RowServable>(servable::ServableId{"m", 1},
                                               [this](const testing::RowRun& run) {
                                                 row_counts_.push_back(run.rows);
                                                 return base::Status();
                                               }),
        servable::BatchSettings());
    const tensor::Signature& signature = batching->signatures().find("serving_default")->second;
    batching->LearnCost(signature, 4'096, 1);
    batching->TurnOn(signature, {2, 2, false});
    const auto entry = std::make_shared<servable::ServableEntry>(std::move(batching));
    EXPECT_TRUE(servable::PublishHighest(map_, entry).ok());
    limits_.admission = std::make_shared<servable::Admission>();
    limits_.batches = &map_.batches();
    limits_.is_cut_short = &is_cut_short_;
  }

  std::shared_ptr<RunnableCall> NewRequest(int32_t stream, int64_t x) {
    const std::string bytes(reinterpret_cast<const char*>(&x), sizeof x);
    const std::string message = testing::PredictMessage(testing::ModelSpecMessage("m"),
                                                        {{"x", testing::kRowsMark + bytes}});
    IncomingRequest request{base::ByteBudget::Share(nullptr)};
    EXPECT_TRUE(request.Begin(&method_, {}, 1).ok());
    EXPECT_TRUE(request.AddData(testing::GrpcMessage(message), &space_, 1).ok());
    auto call = std::make_shared<StreamCall>(carrier_, &limits_, stream, request.Take(),
                                             CallAccount(&counts_, &open_bytes_, 0));
    carrier_->Add(stream, call);
    EXPECT_TRUE(call->Arrive());
    return call;
  }

  std::vector<int64_t> row_counts_;  // of each run
  servable::ServingMap map_;
  const metrics::RequestStatistics statistics_{/*now_ns=*/0};
  PredictHandler predict_{{&map_, &statistics_, nullptr}, tensor::TensorEncoding::kTypedFields};
  const Method method_{"/tensorflow.serving.PredictionService/Predict", &predict_};
  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  std::atomic<bool> is_cut_short_{false};
  CallCounts counts_;
  std::atomic<int64_t> open_bytes_{0};
  CallLimits limits_;
  ReceiveSpace space_;
};

TEST_F(RequestThreadsTest, ABatchTakesWhatTheNetworkHoldsBesideAFreeThread) {
  TwoRequests source(NewRequest(1, 10), NewRequest(3, 20));
  RequestThreads threads(&source, map_.batches(), 2, 2);
  threads.Start();
  while (limits_.admission->in_flight_count() > 0) std::this_thread::yield();
  threads.Stop();
  source.End();
  EXPECT_TRUE(threads.Join(4 * kSecondNs));
  ASSERT_FALSE(row_counts_.empty());
  EXPECT_EQ(row_counts_.front(), 2);
  EXPECT_EQ(carrier_->answers().size(), 2);
}

}  // namespace
}  // namespace millpond::rpc
