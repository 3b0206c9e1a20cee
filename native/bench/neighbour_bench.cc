// The waits of a model with short runs on an accelerator, alone and beside a model whose requests
// are five times what the accelerator can compute: request threads, queue and turns are the
// server's own. The accelerator is a clock: it computes one run at a time, and uses no core.
//
//     neighbour_bench [THREADS [SECONDS]]
//
// The first second counts apart, because the server has to see first that the models share it.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/piece_choice.h"
#include "native/rpc/incoming_request.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/request_threads.h"
#include "native/rpc/stream_call.h"
#include "native/servable/admission.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/whole_answers.h"

namespace millpond {
namespace {

constexpr double kSecondNs = 1e9;
// Runs of 32 rows of the light model, and the programs of a dense one with 100 million parameters.
constexpr int64_t kLightNs = 100'000;
constexpr double kLightPerSecond = 500;
const std::map<int64_t, int64_t> kDenseNs = {
    {1, 150'000}, {32, 280'000}, {128, 1'000'000}, {512, 4'000'000}, {2048, 16'000'000}};
constexpr int64_t kDenseRows = 2048;
constexpr double kDensePerSecond = 5 * kSecondNs / 16'000'000;

// A network that hands out requests at their times.
class Arrivals final : public rpc::EventSource {
 public:
  bool HandleEvents(size_t, int timeout_ms, rpc::ReceiveSpace*,
                    std::vector<std::shared_ptr<rpc::RunnableCall>>* to_run,
                    std::atomic<int>* idle_count) override {
    std::unique_lock lock(mutex_);
    const auto may_go = [this] { return wake_count_ > 0 || !calls_.empty(); };
    if (timeout_ms != 0) changed_.wait(lock, may_go);
    const bool is_woken = calls_.empty() && wake_count_ > 0;
    if (is_woken) --wake_count_;
    // As the network does: a thread that waits reads one connection, and one that looks reads more.
    for (int i = 0; i < (timeout_ms < 0 ? 1 : 16) && !calls_.empty(); ++i) {
      to_run->push_back(std::move(calls_.front()));
      calls_.pop_front();
    }
    if (idle_count != nullptr) idle_count->fetch_sub(1);
    return is_woken;
  }
  void Wake(size_t) override {
    const std::lock_guard lock(mutex_);
    ++wake_count_;
    changed_.notify_one();
  }
  void CheckTimes(int64_t) override {}
  void Add(std::shared_ptr<rpc::RunnableCall> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<rpc::RunnableCall>> calls_;
  int wake_count_ = 0;
};

// The device computes runs in the order in which they begin.
class Device {
 public:
  void Run(int64_t ns) {
    int64_t end_ns = 0;
    {
      const std::lock_guard lock(mutex_);
      end_ns = free_ns_ = std::max(free_ns_, base::MonotonicNs()) + ns;
    }
    base::SleepNs(std::max<int64_t>(end_ns - base::MonotonicNs(), 0));
  }

 private:
  std::mutex mutex_;
  int64_t free_ns_ = 0;
};

// The time of each request of a model, by stage.
struct Stages {
  std::vector<int64_t> queue_ns, turn_ns, run_ns, all_ns;
};

int64_t Quantile(std::vector<int64_t> values, double quantile) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(quantile * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

// Runs each request on the device, in pieces if models share it. The path's last part is the model.
class Models final : public testing::WholeAnswers {
 public:
  explicit Models(bool is_low) : is_low_(is_low) {}
  std::string ModelNameOf(const rpc::Call& call) const override {
    return call.path().substr(call.path().rfind('/') + 1);
  }
  void Print(const char* title, double seconds) {
    const std::lock_guard lock(mutex_);
    Stages& light = stages_["light"];
    const auto ms = [](const std::vector<int64_t>& values, double quantile) {
      return static_cast<double>(Quantile(values, quantile)) / 1e6;
    };
    std::printf(
        "%-12s light: n=%zu p50=%.2f p99=%.2f max=%.2f ms; p99 of queue=%.2f turn=%.2f "
        "run=%.2f; dense: %.1f of %.1f a second; light at first: max=%.2f ms\n",
        title, light.all_ns.size(), ms(light.all_ns, 0.5), ms(light.all_ns, 0.99),
        ms(light.all_ns, 1), ms(light.queue_ns, 0.99), ms(light.turn_ns, 0.99),
        ms(light.run_ns, 0.99), static_cast<double>(stages_["dense"].all_ns.size()) / seconds,
        kDensePerSecond / 5, static_cast<double>(first_max_ns_) / 1e6);
  }

 protected:
  void Answer(rpc::RunnableCall* call) override {
    const std::string model = ModelNameOf(*call);
    const int64_t began_ns = base::MonotonicNs();
    int64_t turn_ns = 0;
    int64_t run_ns = 0;
    const bool is_dense = model == "dense";
    if (!call->IsWanted(began_ns)) return call->Fail({base::Code::kDeadlineExceeded, ""});
    for (int64_t rows = is_dense ? kDenseRows : 1; rows > 0;) {
      const int64_t piece = is_dense ? PieceRows() : 1;
      const int64_t cost_ns = is_dense ? kDenseNs.at(piece) : kLightNs;
      const int64_t came_ns = base::MonotonicNs();
      auto turn = turns_.Take(model, is_dense && is_low_, cost_ns, pjrt::DeviceTurns::kNoDeadline);
      if (!turn.ok()) break;
      turn_ns += base::MonotonicNs() - came_ns;
      device_.Run(cost_ns);
      run_ns += turn.value().End();
      rows -= piece;
    }
    call->Fail({base::Code::kOk, ""});
    const int64_t now_ns = base::MonotonicNs();
    const std::lock_guard lock(mutex_);
    if (call->received_ns() < counts_from_ns_) {
      if (!is_dense) first_max_ns_ = std::max(first_max_ns_, now_ns - call->received_ns());
      return;
    }
    Stages& stages = stages_[model];
    stages.queue_ns.push_back(began_ns - call->received_ns());
    stages.turn_ns.push_back(turn_ns);
    stages.run_ns.push_back(run_ns);
    stages.all_ns.push_back(now_ns - call->received_ns());
  }

 private:
  int64_t PieceRows() const {
    if (!turns_.IsShared()) return kDenseRows;
    pjrt::PieceChoice choice;
    for (const auto& [rows, ns] : kDenseNs) choice.Add(rows, ns);
    return choice.rows();
  }

  const bool is_low_;
  const int64_t counts_from_ns_ = base::MonotonicNs() + static_cast<int64_t>(kSecondNs);
  pjrt::DeviceTurns turns_;
  Device device_;
  std::mutex mutex_;
  int64_t first_max_ns_ = 0;  // of the light model's requests in the first second
  std::map<std::string, Stages> stages_;
};

class Load {
 public:
  Load(Models* models, size_t thread_count)
      : methods_{{"light", {"/bench/light", models}}, {"dense", {"/bench/dense", models}}},
        threads_(&arrivals_, batches_, rpc::PlanGroups({}, thread_count), 4 * thread_count) {
    limits_.batches = &batches_;
    limits_.admission = std::make_shared<servable::Admission>();
    threads_.Start();
  }
  ~Load() {
    threads_.Stop();
    (void)threads_.Join(INT64_MAX);
  }

  // Sends the requests of `seconds`.
  void Send(bool has_dense, double seconds) {
    const int64_t begin_ns = base::MonotonicNs();
    const auto after = [this](double per_second) {
      return static_cast<int64_t>(std::exponential_distribution(per_second / kSecondNs)(random_));
    };
    int64_t light_ns = begin_ns;
    int64_t dense_ns = has_dense ? begin_ns : INT64_MAX;
    while (std::min(light_ns, dense_ns) < begin_ns + static_cast<int64_t>(seconds * kSecondNs)) {
      const bool is_light = light_ns <= dense_ns;
      base::SleepNs(std::max<int64_t>(std::min(light_ns, dense_ns) - base::MonotonicNs(), 0));
      if (is_light) light_ns += after(kLightPerSecond);
      if (!is_light) dense_ns += after(kDensePerSecond);
      arrivals_.Add(NewCall(is_light ? "light" : "dense"));
    }
  }

 private:
  std::shared_ptr<rpc::RunnableCall> NewCall(const std::string& model) {
    const int64_t now_ns = base::MonotonicNs();
    rpc::IncomingRequest request{base::ByteBudget::Share()};
    const rpc::Method& method = methods_.at(model);
    // A server refuses what would wait for too long.
    request.headers()->Add("grpc-timeout", "1S");
    (void)request.Begin(&method, {}, now_ns).ok();
    (void)request.AddData("", &space_, now_ns).ok();
    return std::make_shared<rpc::StreamCall>(carrier_, &limits_, stream_ += 2, request.Take(),
                                             rpc::CallAccount());
  }

  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  servable::BatchRegistry batches_;
  rpc::CallLimits limits_;
  std::map<std::string, rpc::Method> methods_;
  rpc::ReceiveSpace space_;
  int32_t stream_ = -1;
  std::mt19937 random_;
  Arrivals arrivals_;
  rpc::RequestThreads threads_;
};

}  // namespace
}  // namespace millpond

int main(int argc, char** argv) {
  const size_t threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4;
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 5;
  for (const char* const title : {"alone", "beside", "beside low"}) {
    millpond::Models models(/*is_low=*/std::string(title) == "beside low");
    {
      millpond::Load load(&models, threads);
      load.Send(/*has_dense=*/std::string(title) != "alone", 1 + seconds);
    }
    models.Print(title, seconds);
  }
  return 0;
}
