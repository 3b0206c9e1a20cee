// The promise of batching, over random sequences of what may happen: arrivals, other outputs and
// shapes, large requests, bad requests, deadlines, cancellations, and versions that come and go.
// Each request is answered once, with its own rows or its own error, by one version. No batch mixes
// versions, no request runs that its client has given up, and no version goes while it has one.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/servable/batching_servable.h"
#include "native/servable/serving_map.h"
#include "tests/native/row_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/waiting_requests.h"

namespace millpond::servable {
namespace {

using base::Code;
using base::Status;
using testing::NumbersOf;
using testing::RowRun;
using testing::RowServable;
using Values = std::vector<int64_t>;

constexpr int64_t kNever = INT64_MAX;
// Values of a request are its number times this, and more. So 0 is the value of padding.
constexpr int64_t kValuesPerRequest = 1'000;

// Orders cancellations and looks of all threads.
std::atomic<int64_t> event_count{0};
// When this thread last looked for other requests: its next batch begins later.
thread_local int64_t looked_event = 0;
thread_local int64_t looked_ns = 0;

void NoteLook() {
  looked_ns = base::MonotonicNs();
  looked_event = event_count.fetch_add(1);
}

struct PromisedRequest {
  // Set before it arrives.
  int64_t number = 0;
  std::string model;
  std::string signature;  // "": both in one run
  tensor::OutputSet outputs;
  Values x;
  int64_t width = 1;
  int64_t bad_id = 0;  // 0: none
  int64_t deadline_ns = kNever;

  std::atomic<bool> is_cancelled{false};
  std::atomic<int64_t> cancelled_event{kNever};
  void Cancel() {
    is_cancelled = true;
    int64_t never = kNever;
    cancelled_event.compare_exchange_strong(never, event_count.fetch_add(1));
  }

  // Set by the thread that answers it.
  std::atomic<int> answer_count{0};
  int64_t begin_event = 0;
  int64_t version = 0;
  Status status;
  int64_t end_ns = 0;
  std::vector<testing::Tensors> results;
};

// The events of all worlds of a test, so that a test that tries nothing fails.
struct Totals {
  int64_t shared_runs = 0;
  int64_t failed_batches = 0;
  int64_t split_requests = 0;
  int64_t padding_rows = 0;
  int64_t cancelled = 0;
  int64_t expired = 0;
  int64_t bad = 0;
  int64_t destroyed_versions = 0;
};

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int64_t Number(int64_t from, int64_t to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }
  bool OneIn(int64_t count) { return Number(1, count) == 1; }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
};

// Some models with versions, requests to them, and events. Any threads answer, one makes events.
class World {
 public:
  World(unsigned seed, Totals* totals) : random_(seed), totals_(*totals) {
    settings_ = RandomSettings();
    for (const char* model : {"m", "n"}) Publish(model);
    for (int64_t i = random_.Number(20, 80); i > 0; --i) AddRequest();
    waiting_.OnLook([this] {
      if (is_alone_) {
        if (random_.OneIn(2)) MakeEvent();
      } else if (random_.OneIn(4)) {
        std::this_thread::yield();  // the thread that makes events
      }
      NoteLook();
    });
  }

  // Answers all on the calling thread, which also makes the events: the seed decides everything but
  // the clock.
  void RunAlone() {
    is_alone_ = true;
    while (answered_count_ < requests_.size()) {
      MakeEvent();
      waiting_.AnswerNext();
    }
  }
  void RunOnThreads(int count) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([this] {
        while (answered_count_ < requests_.size()) {
          if (!waiting_.AnswerNext()) std::this_thread::yield();
        }
      });
    }
    while (answered_count_ < requests_.size()) {
      MakeEvent();
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Check() {
    for (const auto& request : requests_) {
      SCOPED_TRACE("request " + std::to_string(request->number));
      CheckAnswer(*request);
    }
    // No handle is left, so whatever is retired can go.
    DestroyWhatIsFree();
    EXPECT_TRUE(retired_.empty());
    for (const char* model : {"m", "n"}) NoteFigures(*map_.LookUp(model, {}).value());
  }

 private:
  // A version that must not go while it has a request.
  class Version final : public RowServable {
   public:
    Version(ServableId id, World* world)
        : RowServable(std::move(id), [world](const RowRun& run) { return world->OnRun(run); }),
          world_(*world) {
      runs_together = true;
    }
    ~Version() override {
      EXPECT_EQ(request_count, 0) << id().version;
      world_.totals_.destroyed_versions += 1;
    }

    mutable std::atomic<int> request_count{0};

   private:
    World& world_;
  };

  BatchSettings RandomSettings() {
    BatchSettings settings;
    settings.rows_max = random_.Number(1, 40);
    settings.run_ns_max = random_.OneIn(3) ? random_.Number(1, 100) * 1'000 : 0;
    settings.splits = !random_.OneIn(4);
    settings.pads_inputs = random_.OneIn(4);
    if (random_.OneIn(4)) settings.slots = std::make_shared<BatchSlots>(1);
    if (random_.OneIn(4)) settings.allowed_rows = {settings.rows_max / 2 + 1, settings.rows_max};
    return settings;
  }

  BatchChecks RandomChecks() {
    BatchChecks checks;
    checks.first_count = random_.Number(0, 3);
    checks.first_padded_count = random_.Number(0, 3);
    checks.goes_on = random_.OneIn(2);
    return checks;
  }

  void AddRequest() {
    auto request = std::make_unique<PromisedRequest>();
    request->number = static_cast<int64_t>(requests_.size()) + 1;
    request->model = random_.OneIn(4) ? "n" : "m";
    request->signature = random_.OneIn(5) ? "other" : "serving_default";
    if (random_.OneIn(8)) request->signature = "";
    request->outputs = tensor::OutputSet::All(2);
    if (random_.OneIn(5)) {
      request->outputs = tensor::OutputSet(2);
      request->outputs.Add(static_cast<size_t>(random_.Number(0, 1)));
    }
    request->width = random_.OneIn(5) ? random_.Number(1, 3) : 1;
    const int64_t rows = random_.OneIn(10) ? random_.Number(10, 100) : random_.Number(1, 4);
    for (int64_t i = 0; i < rows * request->width; ++i) {
      request->x.push_back(request->number * kValuesPerRequest + i);
    }
    if (random_.OneIn(15)) {
      int64_t& bad = request->x[static_cast<size_t>(
          random_.Number(0, static_cast<int64_t>(request->x.size()) - 1))];
      bad = -bad;
      request->bad_id = bad;
    }
    requests_.push_back(std::move(request));
  }

  // --- Events: one thread ---

  void MakeEvent() {
    switch (random_.Number(0, 9)) {
      case 0:
        return Swap(random_.OneIn(3) ? "n" : "m");
      case 1:
      case 2:
        return DestroyWhatIsFree();
      case 3:
        return CancelOne();
      default:
        return Arrive(random_.OneIn(10) ? random_.Number(5, 30) : random_.Number(1, 3));
    }
  }
  void Arrive(int64_t count) {
    for (; count > 0 && arrived_count_ < requests_.size(); --count) {
      PromisedRequest* const request = requests_[arrived_count_++].get();
      const int64_t now_ns = base::MonotonicNs();
      if (random_.OneIn(8)) request->deadline_ns = now_ns + random_.Number(-10, 400) * 1'000;
      if (random_.OneIn(25)) request->Cancel();
      const BatchKey key = request->signature.empty()
                               ? BatchKeyOfSeveral(request->model)
                               : BatchKeyOf(request->model, request->signature);
      const auto turn = std::make_shared<Turn>();
      waiting_.Add(key, {[this, request, turn] { return Prepare(request, turn.get()); },
                         [this, request, turn] { Finish(request, turn.get()); }});
    }
  }
  void CancelOne() {
    requests_[static_cast<size_t>(random_.Number(0, static_cast<int64_t>(requests_.size()) - 1))]
        ->Cancel();
  }
  std::shared_ptr<ServableEntry> Publish(const std::string& model) {
    const ServableId id{model, ++last_version_};
    auto batching =
        std::make_unique<BatchingServable>(std::make_unique<Version>(id, this), settings_);
    for (const auto& [name, signature] : batching->signatures()) {
      // Else the cost is learned from the runs.
      if (random_.OneIn(2)) batching->LearnCost(signature, 4'096, 1);
      if (!random_.OneIn(10)) batching->TurnOn(signature, RandomChecks());
    }
    auto entry = std::make_shared<ServableEntry>(std::move(batching));
    EXPECT_TRUE(PublishHighest(map_, entry).ok());
    return entry;
  }
  void Swap(const std::string& model) {
    // Spread over the requests.
    const size_t due_count = swap_count_ * requests_.size() / kSwapsMax;
    if (swap_count_ >= kSwapsMax || answered_count_ < due_count) return;
    swap_count_ += 1;
    const int64_t before = map_.Versions(model).back();
    std::shared_ptr<ServableEntry> entry;
    for (const auto& each : map_.Entries()) {
      if (each->id().name == model && each->id().version == before) entry = each;
    }
    Publish(model);
    EXPECT_TRUE(RetireVersion(map_, model, before).ok());
    retired_.push_back(std::move(entry));
  }
  void DestroyWhatIsFree() {
    const auto free = [this](const std::shared_ptr<ServableEntry>& entry) {
      const auto is_quiet = entry->Quiesce(0);
      if (!is_quiet.ok() || !is_quiet.value()) return false;
      NoteFigures(entry->servable());
      EXPECT_TRUE(entry->Destroy().ok());
      return true;
    };
    retired_.erase(std::remove_if(retired_.begin(), retired_.end(), free), retired_.end());
  }

  // --- Answers: any thread ---

  // A request while it is answered.
  struct Turn {
    ServableHandle handle;
    PreparedRun run;
  };

  PreparedRun* Prepare(PromisedRequest* request, Turn* turn) {
    request->answer_count += 1;
    request->begin_event = event_count.fetch_add(1);
    auto found = map_.LookUp(request->model, {});
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (!found.ok()) return nullptr;
    turn->handle = std::move(found.value());
    request->version = turn->handle->id().version;
    VersionOf(*turn).request_count += 1;
    PreparedRun& run = turn->run;
    run.servable = &*turn->handle;
    run.inputs = testing::RowInputs(request->x, request->width);
    run.context.deadline_ns = request->deadline_ns;
    run.context.is_cancelled = &request->is_cancelled;
    const tensor::SignatureMap& signatures = turn->handle->signatures();
    if (request->signature.empty()) {
      run.signatures = {&signatures.at("other"), &signatures.at("serving_default")};
    } else {
      run.signatures = {&signatures.find(request->signature)->second};
      run.outputs = request->outputs;
    }
    return &run;
  }
  void Finish(PromisedRequest* request, Turn* turn) {
    request->status = turn->run.status;
    request->end_ns = base::MonotonicNs();
    if (request->status.ok()) {
      for (const auto& result : turn->run.results) {
        request->results.push_back(result.storage().tensors);
      }
    }
    turn->run = {};
    VersionOf(*turn).request_count -= 1;
    turn->handle = {};
    answered_count_ += 1;
  }
  static const Version& VersionOf(const Turn& turn) {
    const auto& inner = static_cast<const BatchingServable&>(*turn.handle).inner();
    return static_cast<const Version&>(inner);
  }

  // Looks at each run before its rows are computed. All requests of a batch are the thread's own.
  Status OnRun(const RowRun& run) {
    std::vector<const PromisedRequest*> members;
    for (const int64_t value : run.values) {
      if (value == 0) continue;
      const auto index = static_cast<size_t>(std::abs(value) / kValuesPerRequest - 1);
      const PromisedRequest* const member = requests_.at(index).get();
      if (members.empty() || members.back() != member) members.push_back(member);
    }
    for (const PromisedRequest* member : members) {
      EXPECT_EQ(member->answer_count, 1) << member->number;
      EXPECT_EQ(member->version, run.version) << "a batch mixes versions: " << member->number;
      EXPECT_GT(member->cancelled_event, looked_event) << "runs cancelled: " << member->number;
      EXPECT_GT(member->deadline_ns, looked_ns) << "runs too late: " << member->number;
    }
    if (random_.OneIn(10)) CancelOne();
    if (random_.OneIn(4)) std::this_thread::yield();
    const bool is_joint =
        std::any_of(members.begin(), members.end(),
                    [&](const PromisedRequest* each) { return each != members[0]; });
    return is_joint && random_.OneIn(20) ? base::Internal("a batch that fails") : Status();
  }

  // --- Checks ---

  void CheckAnswer(const PromisedRequest& request) {
    ASSERT_EQ(request.answer_count, 1);
    const Code code = request.status.code();
    const bool was_unwanted = request.cancelled_event < request.begin_event;
    if (code == Code::kOk) {
      EXPECT_EQ(request.bad_id, 0);
      EXPECT_FALSE(was_unwanted);
      return CheckRows(request);
    }
    if (code == Code::kCancelled) {
      totals_.cancelled += 1;
      EXPECT_TRUE(request.is_cancelled);
    } else if (code == Code::kDeadlineExceeded) {
      totals_.expired += 1;
      EXPECT_LE(request.deadline_ns, request.end_ns);
    } else {
      totals_.bad += 1;
      EXPECT_NE(request.bad_id, 0);
      EXPECT_FALSE(was_unwanted);
      EXPECT_EQ(request.status.message(), "bad id " + std::to_string(request.bad_id));
    }
  }
  void CheckRows(const PromisedRequest& request) const {
    const bool is_joint = request.signature.empty();
    ASSERT_EQ(request.results.size(), is_joint ? 2U : 1U);
    const tensor::OutputSet outputs = is_joint ? tensor::OutputSet::All(2) : request.outputs;
    for (const testing::Tensors& result : request.results) {
      ASSERT_EQ(result.size(), outputs.size());
      const auto y = [&](int64_t x) { return RowServable::Y(x, request.version); };
      if (outputs.Contains(0)) CheckTensor(request, result[outputs.Rank(0)], y);
      if (outputs.Contains(1)) {
        CheckTensor(request, result[outputs.Rank(1)], [](int64_t x) { return -x; });
      }
    }
  }
  template <typename Function>
  void CheckTensor(const PromisedRequest& request, const testing::OpaqueTensor& tensor,
                   const Function& function) const {
    const int64_t rows = static_cast<int64_t>(request.x.size()) / request.width;
    ASSERT_EQ(tensor.dims.size(), 2U);
    ASSERT_EQ(tensor.dims[0], rows);
    const int64_t width = tensor.dims[1];
    ASSERT_GE(width, request.width);
    ASSERT_TRUE(settings_.pads_inputs || width == request.width);
    Values expected;
    for (int64_t i = 0; i < rows * width; ++i) {
      const bool is_own = i % width < request.width;
      const int64_t at = i / width * request.width + i % width;
      expected.push_back(function(is_own ? request.x[static_cast<size_t>(at)] : 0));
    }
    EXPECT_EQ(NumbersOf<int64_t>(tensor), expected);
  }
  void NoteFigures(const Servable& servable) {
    for (const auto& each : static_cast<const BatchingServable&>(servable).Batching()) {
      const BatchSizeCounts& by_requests = each.figures.by_requests;
      totals_.shared_runs +=
          std::accumulate(by_requests.begin() + 1, by_requests.end(), int64_t{0});
      totals_.failed_batches += each.figures.failed_batch_count;
      totals_.split_requests += each.figures.split_request_count;
      totals_.padding_rows += each.figures.padding_row_count;
    }
  }

  static constexpr size_t kSwapsMax = 5;

  Random random_;
  Totals& totals_;
  BatchSettings settings_;
  std::deque<std::unique_ptr<PromisedRequest>> requests_;
  std::atomic<size_t> answered_count_{0};
  testing::QueuedRequests waiting_;
  ServingMap map_;
  // Used by the thread that makes events only.
  bool is_alone_ = false;
  size_t arrived_count_ = 0;
  int64_t last_version_ = 0;
  size_t swap_count_ = 0;
  std::vector<std::shared_ptr<ServableEntry>> retired_;
};

void ExpectMuchWasTried(const Totals& totals) {
  EXPECT_GT(totals.shared_runs, 250);
  EXPECT_GT(totals.failed_batches, 50);
  EXPECT_GT(totals.split_requests, 50);
  EXPECT_GT(totals.padding_rows, 50);
  EXPECT_GT(totals.cancelled, 50);
  EXPECT_GT(totals.expired, 10);
  EXPECT_GT(totals.bad, 50);
  EXPECT_GT(totals.destroyed_versions, 400);
}

TEST(BatchingPromise, HoldsForRandomSequencesOnOneThread) {
  Totals totals;
  for (unsigned seed = 0; seed < 150 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, &totals);
    world.RunAlone();
    world.Check();
  }
  ExpectMuchWasTried(totals);
}

TEST(BatchingPromise, HoldsForRandomSequencesOnSeveralThreads) {
  Totals totals;
  for (unsigned seed = 0; seed < 150 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, &totals);
    world.RunOnThreads(2 + static_cast<int>(seed % 3));
    world.Check();
  }
  ExpectMuchWasTried(totals);
}

}  // namespace
}  // namespace millpond::servable
