// Runs of a device that does everything as late as the PJRT C API permits (late_device.h), in
// random sequences. Memory that is given back too early gives a wrong answer here, or is counted.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/row_program.h"
#include "tests/native/fake_pjrt_plugin.h"

namespace millpond::pjrt {
namespace {

// Each sanitizer's build takes every other sequence, because a sequence takes a quarter of a second
// there.
#ifdef __SANITIZE_THREAD__
constexpr uint32_t kFirstSeed = 1;
#else
constexpr uint32_t kFirstSeed = 2;
#endif
constexpr int64_t kSequences = 30;
constexpr int kThreads = 3;
constexpr int kRunsOfAThread = 40;
constexpr int kSwaps = 12;
constexpr int64_t kRowsMax = 20;
constexpr size_t kModels = 2;
const std::vector<int64_t> kSizes = {1, 3, 8};
// A run of the largest size has a block of two inputs, the second at a cache line, and an output.
constexpr int64_t kRunBytesMax = (64 + 8 * 4) + 8 * 4;
constexpr int64_t kCopyBytes = 4;
// Long enough that a turn ends before the outputs are copied.
constexpr int64_t kLongRunNs = 1'200'000;
// The elements that a caller leaves in memory that it has back.
constexpr float kTakenBack = -77;

using Random = std::mt19937;

void* Symbol(const char* name) { return dlsym(dlopen(FAKE_PJRT_PLUGIN, RTLD_NOW), name); }

// A version of a model: its answer to a row is the sum of two inputs, times its factor.
struct Version {
  float factor;
  std::shared_ptr<DeviceParameters> parameters;
  std::unique_ptr<RowProgram> program;
};

std::shared_ptr<const Version> MakeVersion(const std::shared_ptr<Accelerator>& accelerator,
                                           const std::string& model, float factor) {
  auto version = std::make_shared<Version>();
  version->factor = factor;
  version->parameters = std::make_shared<DeviceParameters>(
      accelerator, model, std::vector{HostTensor{PJRT_Buffer_Type_F32, {1}, &version->factor, 4}});
  constexpr size_t row = sizeof(float);
  version->program = std::make_unique<RowProgram>(version->parameters, std::vector<size_t>{0},
                                                  std::vector{row, row}, std::vector{row});
  for (const int64_t rows : kSizes) {
    auto executable = accelerator->Compile(std::to_string(rows) + " 2");
    EXPECT_TRUE(executable.ok()) << executable.status().message();
    EXPECT_TRUE(version->program->AddSize(rows, std::move(executable.value())).ok());
  }
  // There may be no room now, or the device may fail: then its runs are for the CPU.
  static_cast<void>(version->parameters->Upload(version->program->run_bytes_max()));
  return version;
}

// One sequence: threads with runs of two models, whose versions are swapped meanwhile.
class Sequence {
 public:
  Sequence(std::shared_ptr<Accelerator> accelerator, uint32_t seed)
      : accelerator_(std::move(accelerator)), seed_(seed) {
    for (size_t model = 0; model < kModels; ++model) Swap(model);
  }

  // Runs it, and returns the number of runs that gave an answer.
  int64_t Run() {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([this, thread] { RunMany(Random(seed_ * 100 + thread)); });
    }
    Random random(seed_);
    for (int swap = 0; swap < kSwaps; ++swap) Swap(random() % kModels);
    for (std::thread& thread : threads) thread.join();
    return answered_.load();
  }

 private:
  // The memory of a request, which its caller keeps, to see that nobody else writes to it later.
  struct Request {
    std::array<std::vector<float>, 2> inputs;
    std::vector<float> output;
  };

  static std::string Name(size_t model) { return "model " + std::to_string(model); }

  void Swap(size_t model) {
    const auto factor = static_cast<float>(2 * ++last_factor_ + 1);
    auto version = MakeVersion(accelerator_, Name(model), factor);
    const std::lock_guard lock(mutex_);
    versions_[model].swap(version);
  }

  void RunMany(Random random) {
    std::deque<Request> requests;
    for (int run = 0; run < kRunsOfAThread; ++run) {
      requests.emplace_back();
      RunOne(&random, &requests.back());
    }
    for (const Request& request : requests) {
      for (const auto& elements : {request.inputs[0], request.inputs[1], request.output}) {
        EXPECT_EQ(std::count(elements.begin(), elements.end(), kTakenBack), elements.size());
      }
    }
  }

  void RunOne(Random* random, Request* request) {
    std::shared_ptr<const Version> version;
    {
      const std::lock_guard lock(mutex_);
      version = versions_[(*random)() % kModels];
    }
    const int64_t rows = 1 + static_cast<int64_t>((*random)() % kRowsMax);
    for (auto& input : request->inputs) {
      for (int64_t row = 0; row < rows; ++row) {
        input.push_back(static_cast<float>((*random)() % 1000));
      }
    }
    request->output.resize(rows);
    const bool is_urgent = (*random)() % 5 == 0;
    const int64_t deadline_ns =
        is_urgent ? base::MonotonicNs() + (*random)() % 300'000 : DeviceTurns::kNoDeadline;
    const auto copy = version->parameters->Pin();
    if (copy == nullptr) {
      TakeBack(request);
      return;
    }
    const base::Status ran =
        version->program->Run(*copy, rows,
                              {reinterpret_cast<const char*>(request->inputs[0].data()),
                               reinterpret_cast<const char*>(request->inputs[1].data())},
                              {reinterpret_cast<char*>(request->output.data())}, deadline_ns);
    if (ran.ok()) Check(*version, *request);
    TakeBack(request);
  }

  void Check(const Version& version, const Request& request) {
    answered_.fetch_add(1);
    for (size_t row = 0; row < request.output.size(); ++row) {
      ASSERT_EQ(request.output[row],
                (request.inputs[0][row] + request.inputs[1][row]) * version.factor)
          << "row " << row << " of " << request.output.size() << ", seed " << seed_;
    }
  }

  void TakeBack(Request* request) const {
    for (auto* elements : {&request->inputs[0], &request->inputs[1], &request->output}) {
      EXPECT_FALSE(uses_(elements->data(), elements->size() * sizeof(float))) << "seed " << seed_;
      std::fill(elements->begin(), elements->end(), kTakenBack);
    }
  }

  const std::shared_ptr<Accelerator> accelerator_;
  const uint32_t seed_;
  decltype(&FakePjrtUses) const uses_ =
      reinterpret_cast<decltype(&FakePjrtUses)>(Symbol("FakePjrtUses"));
  std::atomic<int64_t> answered_{0};
  int last_factor_ = 0;
  std::mutex mutex_;
  std::array<std::shared_ptr<const Version>, kModels> versions_;  // guarded by the mutex
};

class LateRunsTest : public ::testing::Test {
 protected:
  LateRunsTest() { *controls_ = {}; }
  ~LateRunsTest() override { *controls_ = {}; }

  // Runs a sequence of the settings that its seed gives, and returns the number of answers.
  int64_t RunSequence(uint32_t seed) {
    Random random(seed);
    *controls_ = {};
    controls_->is_late = true;
    controls_->late_seed = seed;
    controls_->pins = random() % 4 > 0;
    controls_->late_fails_one_of = std::array<uint32_t, 4>{0, 0, 100, 20}[random() % 4];
    if (random() % 6 == 0) {
      controls_->run_ns = kLongRunNs;
      controls_->transfer_out_ns = 2 * kLongRunNs;
    }
    // Either for all, or for the largest run and the copies of all models, and little more.
    const int64_t tight_bytes = kRunBytesMax + (random() % 3 + 1) * kCopyBytes +
                                static_cast<int64_t>(random() % 3) * kRunBytesMax;
    if (random() % 2 == 0) controls_->memory_bytes_max = tight_bytes;
    AcceleratorOptions options;
    options.idle_ns = 0;
    int64_t answered = 0;
    {
      const auto accelerators =
          Accelerator::MakeAll(Plugin::Open(FAKE_PJRT_PLUGIN).value(), options);
      answered = Sequence(accelerators.value().front(), seed).Run();
    }
    EXPECT_EQ(controls_->misuse_count, 0) << "seed " << seed;
    EXPECT_EQ(controls_->early_run_count, 0) << "seed " << seed;
    EXPECT_EQ(controls_->refused_count, 0) << "seed " << seed << ": more was taken than charged";
    EXPECT_EQ(controls_->used_bytes, 0) << "seed " << seed;
    EXPECT_EQ(controls_->live_buffers + controls_->live_events + controls_->live_errors +
                  controls_->live_pins + controls_->live_clients,
              0)
        << "seed " << seed;
    return answered;
  }

  FakePjrtControls* const controls_ =
      reinterpret_cast<decltype(&FakePjrtControlsOf)>(Symbol("FakePjrtControlsOf"))();
};

TEST_F(LateRunsTest, EachAnswerIsOfOneVersionAndItsOwnRows) {
  int64_t answered = 0;
  for (int64_t sequence = 0; sequence < kSequences && !HasFailure(); ++sequence) {
    answered += RunSequence(kFirstSeed + 2 * sequence);
  }
  // The CPU would do the others.
  EXPECT_GT(answered, kSequences * kThreads * kRunsOfAThread / 4);
}

}  // namespace
}  // namespace millpond::pjrt
