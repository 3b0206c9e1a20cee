#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/base/crash_page.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/ahead_compiler.h"
#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/driver_pins.h"
#include "native/pjrt/driver_thread.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/packed_tensors.h"
#include "native/pjrt/piece_choice.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/row_program.h"
#include "native/pjrt/tuned_trial.h"
#include "tests/native/fake_pjrt_plugin.h"
#include "tests/native/temporary_directory.h"

namespace millpond::pjrt {
namespace {

using base::Code;

constexpr float kFactor = 3;
// Two staging buffers are made at once.
constexpr int64_t kUploadBytes = 2 * ChunkedUpload::kChunkBytes;

// Runs `program` with its parameters, which are there.
base::Status RunThere(const RowProgram& program, int64_t rows,
                      const std::vector<const char*>& inputs, const std::vector<char*>& outputs) {
  return program.Run(*program.parameters().Pin(), rows, inputs, outputs);
}

// Returns the answer to `rows` rows of 1.
std::vector<float> RunOnes(const RowProgram& program, int64_t rows) {
  const std::vector<float> input(rows, 1);
  std::vector<float> output(rows);
  EXPECT_TRUE(RunThere(program, rows, {reinterpret_cast<const char*>(input.data())},
                       {reinterpret_cast<char*>(output.data())})
                  .ok());
  return output;
}

// Memory of this process for runs, within a limit of its own.
class HeapMemory {
 public:
  std::shared_ptr<char> Take(size_t bytes) {
    if (!is_there) return nullptr;
    ++taken_count;
    return std::shared_ptr<char>(new char[bytes], std::default_delete<char[]>());
  }

  bool is_there = true;
  int64_t taken_count = 0;
};

class PjrtTest : public ::testing::Test {
 protected:
  PjrtTest() : plugin_(Plugin::Open(FAKE_PJRT_PLUGIN)) {
    EXPECT_TRUE(plugin_.ok()) << plugin_.status().message();
    const auto controls_of = reinterpret_cast<FakePjrtControls* (*)()>(
        dlsym(dlopen(FAKE_PJRT_PLUGIN, RTLD_NOW), "FakePjrtControlsOf"));
    controls_ = controls_of();
    *controls_ = {};
  }
  ~PjrtTest() override {
    EXPECT_EQ(controls_->live_buffers, 0);
    EXPECT_EQ(controls_->live_executables, 0);
    EXPECT_EQ(controls_->live_clients, 0);
    EXPECT_EQ(controls_->live_errors, 0);
    EXPECT_EQ(controls_->live_events, 0);
    EXPECT_EQ(controls_->live_pins, 0);
    EXPECT_EQ(controls_->live_topologies, 0);
    EXPECT_EQ(controls_->early_run_count, 0);
    *controls_ = {};  // the next test opens the plugin anew
  }

  Accelerator::List MakeAccelerators(AcceleratorOptions options = {}) const {
    options.idle_ns = 0;
    auto made = Accelerator::MakeAll(plugin_.value(), options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.value();
  }
  std::shared_ptr<Accelerator> MakeAccelerator() const { return MakeAccelerators().front(); }

  static std::string Code(int64_t rows, size_t inputs) {
    return std::to_string(rows) + " " + std::to_string(inputs);
  }

  std::unique_ptr<RowProgram> MakeProgram(const std::shared_ptr<Accelerator>& accelerator,
                                          const std::vector<int64_t>& sizes, size_t inputs,
                                          bool needs_exact_rows = false,
                                          HeapMemory* memory = nullptr) const {
    auto parameters = std::make_shared<DeviceParameters>(
        accelerator, "model", std::vector{HostTensor{PJRT_Buffer_Type_F32, {1}, &kFactor, 4}});
    EXPECT_TRUE(parameters->Upload(/*run_bytes=*/0).ok());
    auto program = std::make_unique<RowProgram>(
        std::move(parameters), std::vector<size_t>{0}, std::vector<size_t>(inputs, sizeof(float)),
        std::vector<size_t>{sizeof(float)}, needs_exact_rows,
        memory == nullptr ? RowProgram::TakeMemory()
                          : [=](size_t bytes) { return memory->Take(bytes); });
    for (const int64_t rows : sizes) {
      auto executable = accelerator->Compile(Code(rows, inputs));
      EXPECT_TRUE(executable.ok()) << executable.status().message();
      EXPECT_TRUE(program->AddSize(rows, std::move(executable.value())).ok());
    }
    return program;
  }

  base::StatusOr<Plugin> plugin_;
  FakePjrtControls* controls_;
};

TEST_F(PjrtTest, ProgramsRunOnTheDeviceTheyAreFor) {
  for (const int64_t count : {1, 2, 4}) {
    controls_->device_count = count;
    const Accelerator::List accelerators = MakeAccelerators();
    ASSERT_EQ(accelerators.size(), count);
    for (int64_t device = 0; device < count; ++device) {
      EXPECT_EQ(accelerators[device]->name(), std::to_string(device));
      const int64_t before = controls_->device_run_counts[device];
      const auto program = MakeProgram(accelerators[device], {2}, 1);
      std::array<float, 2> in{1, 2};
      std::array<float, 2> out{};
      EXPECT_TRUE(RunThere(*program, 2, {reinterpret_cast<const char*>(in.data())},
                           {reinterpret_cast<char*>(out.data())})
                      .ok());
      EXPECT_EQ(out, (std::array<float, 2>{3, 6}));
      EXPECT_EQ(controls_->device_run_counts[device], before + 1);
    }
  }
}

// A driver stops all runs while it loads or frees a program, or pins memory.
TEST_F(PjrtTest, CallsThatStopRunsAreMadeOneByOne) {
  const auto accelerator = MakeAccelerator();
  std::unique_ptr<Executable> executable = std::move(accelerator->Compile(Code(1, 1)).value());
  const std::string bytes = executable->Serialize().value();
  alignas(4096) static std::byte memory[4096];
  std::vector<std::future<void>> waiting;
  accelerator->pace().Make([&] {
    waiting.push_back(std::async(std::launch::async, [&] { executable.reset(); }));
    waiting.push_back(std::async(std::launch::async,
                                 [&] { EXPECT_TRUE(accelerator->LoadExecutable(bytes).ok()); }));
    waiting.push_back(std::async(std::launch::async, [&] {
      EXPECT_TRUE(accelerator->pinned()->Pin(memory, sizeof(memory), nullptr));
      EXPECT_TRUE(accelerator->pinned()->Unpin(memory, sizeof(memory), nullptr));
    }));
    base::SleepNs(30'000'000);
    for (auto& each : waiting) {
      EXPECT_EQ(each.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
    }
    EXPECT_EQ(controls_->live_executables, 1);
    EXPECT_EQ(controls_->load_count, 0);
    EXPECT_EQ(controls_->pin_count, 0);
  });
}

// Otherwise runs would pile up while many such calls are made.
TEST_F(PjrtTest, RunsHaveMostOfTheTimeBetweenSuchCalls) {
  constexpr int64_t kCallNs = 3'000'000;
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {1}, 1);
  const float in = 1;
  float out = 0;
  ASSERT_TRUE(
      RunThere(*program, 1, {reinterpret_cast<const char*>(&in)}, {reinterpret_cast<char*>(&out)})
          .ok());
  const int64_t began_ns = base::MonotonicNs();
  accelerator->pace().Make([] { base::SleepNs(kCallNs); });
  accelerator->pace().Make([] {});
  EXPECT_GE(base::MonotonicNs() - began_ns, kCallNs * (1 + DriverPace::kBusyRests));
}

TEST(DriverPace, ACallThatHangsHoldsUpNoOtherForLong) {
  DriverPace pace;
  std::promise<void> end;
  std::promise<void> begun;
  const auto hung = std::async(std::launch::async, [&] {
    pace.Make([&] {
      begun.set_value();
      end.get_future().wait();
    });
  });
  begun.get_future().wait();
  bool is_made = false;
  pace.Make([&] { is_made = true; });
  EXPECT_TRUE(is_made);
  end.set_value();
}

// Calls for one device may hang while the driver serves the others.
TEST_F(PjrtTest, ALoadThatHangsHoldsUpNoOtherDevice) {
  controls_->device_count = 2;
  const Accelerator::List accelerators = MakeAccelerators();
  const std::string bytes = accelerators[0]->Compile(Code(1, 1)).value()->Serialize().value();
  std::promise<void> begun;
  std::promise<void> end;
  controls_->before_load = [&, ended = end.get_future().share()](int64_t device) {
    if (device != 0) return;
    begun.set_value();
    ended.wait();
  };
  auto hung =
      std::async(std::launch::async, [&] { return accelerators[0]->LoadExecutable(bytes).ok(); });
  begun.get_future().wait();
  alignas(4096) static std::byte memory[4096];
  EXPECT_TRUE(accelerators[1]->pinned()->Pin(memory, sizeof(memory), nullptr));
  {
    const auto program = MakeProgram(accelerators[1], {1}, 1);
    EXPECT_TRUE(program->Offer(1, std::move(accelerators[1]->LoadExecutable(bytes).value())).ok());
    EXPECT_EQ(RunOnes(*program, 1), std::vector{kFactor});
  }
  EXPECT_TRUE(accelerators[1]->pinned()->Unpin(memory, sizeof(memory), nullptr));
  EXPECT_EQ(hung.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  end.set_value();
  EXPECT_TRUE(hung.get());
}

// Each load pins memory, of whatever device.
class HangingPinTest : public PjrtTest {
 protected:
  HangingPinTest() {
    controls_->before_pin = [this, ended = end_.get_future().share()] {
      if (pin_count_++ == 0) ended.wait();
    };
  }

  // On a busy machine a pin may be overdue before it begins. Returns what is gone once the pages
  // are not pinned any more.
  std::weak_ptr<int> HangInAPin() {
    std::weak_ptr<int> owner;
    do {
      auto kept = std::make_shared<int>(0);
      const std::weak_ptr<int> own = kept;
      EXPECT_FALSE(pinned_->Pin(memory_[0], sizeof(memory_[0]), std::move(kept)));
      if (!own.expired()) owner = own;
    } while (pin_count_ == 0);
    return owner;
  }

  // Pins a piece, which does not hang.
  void PinTheOther() {
    pin_count_ = 1;
    while (!pinned_->Pin(memory_[1], sizeof(memory_[1]), nullptr)) std::this_thread::yield();
    pin_count_ = 0;
  }

  // Unpins the piece. Returns what is gone once it is unpinned.
  std::weak_ptr<int> UnpinTheOther() {
    auto kept = std::make_shared<int>(0);
    std::weak_ptr<int> owner = kept;
    static_cast<void>(pinned_->Unpin(memory_[1], sizeof(memory_[1]), std::move(kept)));
    return owner;
  }

  static constexpr int64_t kOverdueNs = 20'000'000;
  alignas(4096) static inline std::byte memory_[2][4096];
  std::promise<void> end_;
  std::atomic<int> pin_count_{0};
  std::shared_ptr<const Client> client_ = Client::Make(plugin_.value(), 1).value();
  std::unique_ptr<PinnedMemory> pinned_ =
      std::make_unique<PinnedMemory>(client_, INT64_MAX, kOverdueNs);
};

// A copy from other pages in their place would read these.
TEST_F(HangingPinTest, ItsPagesHaveAnOwnerUntilTheyAreUnpinned) {
  const std::weak_ptr<int> owner = HangInAPin();
  EXPECT_FALSE(owner.expired());
  EXPECT_EQ(pinned_->bytes(), sizeof(memory_[0]));
  end_.set_value();
  while (pinned_->bytes() > 0) std::this_thread::yield();
  EXPECT_TRUE(owner.expired());
  while (client_->HasOverduePin()) std::this_thread::yield();
  pinned_.reset();  // waits for the thread that has counted the pins
  EXPECT_EQ(controls_->live_pins, 0);
}

TEST_F(HangingPinTest, PagesThatTheDriverNeverUnpinsAreKept) {
  const std::weak_ptr<int> owner = HangInAPin();
  controls_->unpins = false;
  end_.set_value();
  while (client_->HasOverduePin()) std::this_thread::yield();
  EXPECT_FALSE(owner.expired());
  EXPECT_EQ(pinned_->bytes(), sizeof(memory_[0]));
  pinned_.reset();  // waits for the thread that has counted the pin
  controls_->live_pins -= 1;
}

TEST_F(HangingPinTest, NoPinIsMadeUntilItsEnd) {
  HangInAPin();
  EXPECT_FALSE(pinned_->Pin(memory_[1], sizeof(memory_[1]), nullptr));
  EXPECT_EQ(client_->Pin(reinterpret_cast<char*>(memory_[1]), 4096).code(), Code::kUnavailable);
  EXPECT_EQ(pin_count_, 1);
  end_.set_value();
  while (!pinned_->Pin(memory_[1], sizeof(memory_[1]), nullptr)) std::this_thread::yield();
  EXPECT_EQ(controls_->live_pins, 1);
  EXPECT_EQ(pinned_->Take(memory_[0]).end(), nullptr);
  EXPECT_TRUE(pinned_->Unpin(memory_[1], sizeof(memory_[1]), nullptr));
}

// The memory has an owner, and counts, until it is unpinned.
TEST_F(HangingPinTest, UnpinsThatComeMeanwhileFollowItsEnd) {
  PinTheOther();
  HangInAPin();
  const std::weak_ptr<int> owner = UnpinTheOther();
  EXPECT_FALSE(owner.expired());
  EXPECT_EQ(pinned_->bytes(), sizeof(memory_));
  end_.set_value();
  while (!owner.expired()) std::this_thread::yield();
  PinTheOther();
  EXPECT_EQ(pinned_->bytes(), sizeof(memory_[1]));
  EXPECT_EQ(controls_->live_pins, 1);
  const std::weak_ptr<int> next_owner = UnpinTheOther();
  while (!next_owner.expired()) std::this_thread::yield();
}

TEST_F(HangingPinTest, UnpinsFollowItsEndAfterTheLastOwner) {
  PinTheOther();
  HangInAPin();
  const std::weak_ptr<int> owner = UnpinTheOther();
  pinned_.reset();
  EXPECT_FALSE(owner.expired());
  end_.set_value();
  while (client_.use_count() > 1) std::this_thread::yield();
  EXPECT_TRUE(owner.expired());
  EXPECT_TRUE(client_->Pin(reinterpret_cast<char*>(memory_[0]), 4096).ok());
  EXPECT_EQ(controls_->live_pins, 1);
  EXPECT_TRUE(client_->Unpin(reinterpret_cast<char*>(memory_[0])).ok());
}

TEST_F(HangingPinTest, OthersThatWaitAlreadyAreNotMade) {
  auto other = std::async(std::launch::async, [&] {
    while (pin_count_ == 0) std::this_thread::yield();
    return pinned_->Pin(memory_[1], sizeof(memory_[1]), nullptr);
  });
  HangInAPin();
  EXPECT_FALSE(other.get());
  EXPECT_EQ(pin_count_, 1);
  end_.set_value();
  while (client_->HasOverduePin()) std::this_thread::yield();
  pinned_.reset();
  EXPECT_EQ(controls_->live_pins, 0);
}

TEST_F(HangingPinTest, TheEndWaitsForNone) {
  HangInAPin();
  pinned_.reset();
  end_.set_value();
  while (client_.use_count() > 1) std::this_thread::yield();
  EXPECT_TRUE(client_->Pin(reinterpret_cast<char*>(memory_[1]), 4096).ok());
  EXPECT_EQ(controls_->live_pins, 1);
  EXPECT_TRUE(client_->Unpin(reinterpret_cast<char*>(memory_[1])).ok());
}

// Its staging buffers serve all the same, and their memory is copied once more.
TEST_F(PjrtTest, APinThatHangsHoldsUpNoRun) {
  std::promise<void> end;
  controls_->before_pin = [ended = end.get_future().share()] { ended.wait(); };
  AcceleratorOptions options;
  options.stall_ns = 20'000'000;
  auto accelerator = MakeAccelerators(options).front();
  auto program = MakeProgram(accelerator, {1}, 1);
  EXPECT_EQ(RunOnes(*program, 1), std::vector{kFactor});
  EXPECT_EQ(controls_->copies_from_pinned, 0);
  EXPECT_EQ(controls_->pin_count, 0);
  end.set_value();
  program.reset();
  // The thread that waits for the pin has the client.
  accelerator.reset();
  while (controls_->live_clients > 0) std::this_thread::yield();
}

// Without any patience, a pin may be left just as the thread takes it up.
TEST_F(PjrtTest, NoPinThatWasLeftStays) {
  alignas(4096) static std::byte memory[4096];
  const auto client = Client::Make(plugin_.value(), 1).value();
  {
    DriverPins pins(client, /*overdue_ns=*/0);
    auto* const start = reinterpret_cast<char*>(memory);
    for (int pin = 0; pin < 5'000; ++pin) {
      if (!pins.Pin(start, sizeof(memory), nullptr)) continue;
      pins.Unpin(start, [](bool is_unpinned) { EXPECT_TRUE(is_unpinned); });
    }
    while (client->HasOverduePin()) std::this_thread::yield();
  }
  EXPECT_EQ(controls_->live_pins, 0);
}

TEST(DriverPace, ARestIsLongerWhileRunsGoOn) {
  EXPECT_EQ(DriverPace::RestNs(500, 0), 2'000);
  EXPECT_EQ(DriverPace::RestNs(500, DriverPace::kBusyNs - 1), 2'000);
  EXPECT_EQ(DriverPace::RestNs(500, DriverPace::kBusyNs), 500);
}

TEST_F(PjrtTest, ProgramOfOneDeviceIsLoadedForAnother) {
  controls_->device_count = 2;
  const Accelerator::List accelerators = MakeAccelerators();
  const std::string serialized = accelerators[0]->Compile(Code(1, 1)).value()->Serialize().value();
  EXPECT_TRUE(accelerators[1]->LoadExecutable(serialized).ok());
  controls_->loads_for_the_first = true;
  EXPECT_TRUE(accelerators[0]->LoadExecutable(serialized).ok());
  EXPECT_EQ(accelerators[1]->LoadExecutable(serialized).status().code(), base::Code::kInternal);
}

TEST_F(PjrtTest, EachDeviceHasItsOwnMemoryAndState) {
  controls_->device_count = 2;
  controls_->counts_memory = false;
  AcceleratorOptions options;
  options.memory_bytes_max = 4;
  const Accelerator::List accelerators = MakeAccelerators(options);
  const auto program = MakeProgram(accelerators[1], {1}, 1);
  EXPECT_EQ(accelerators[0]->State().parameter_bytes, 0);
  EXPECT_EQ(accelerators[1]->State().parameter_bytes, 4);
  EXPECT_EQ(accelerators[1]->State().limit_bytes, 4);
  EXPECT_EQ(accelerators[1]->State().idle_bytes, 4);
  const auto other = accelerators[0]->memory().ChargeCopy("other", 4, 0, nullptr, 0);
  EXPECT_TRUE(other.ok());
  EXPECT_EQ(accelerators[0]->memory().ChargeCopy("m", 1, 0, nullptr, 0).status().code(),
            base::Code::kResourceExhausted);
}

TEST_F(PjrtTest, AnAcceleratorNamesItsPluginAndDevice) {
  const std::string description = MakeAccelerator()->description();
  EXPECT_NE(description.find("API " + std::to_string(PJRT_API_MAJOR)), std::string::npos);
  EXPECT_NE(description.find("fake 1, Fake"), std::string::npos) << description;
}

TEST_F(PjrtTest, ALibraryThatIsNoPluginIsRefused) {
  const auto missing = Plugin::Open("/nowhere/plugin.so");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("/nowhere/plugin.so"), std::string::npos);
  const auto other = Plugin::Open("libz.so.1");
  EXPECT_EQ(other.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(other.status().message().find("GetPjrtApi"), std::string::npos);
}

// Any number of rows is computed as if each row were alone, whatever sizes there are.
TEST_F(PjrtTest, EachNumberOfRowsGivesTheRowsAlone) {
  const auto accelerator = MakeAccelerator();
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes;
    for (size_t i = 0, count = 1 + random() % 4; i < count; ++i) sizes.push_back(1 + random() % 40);
    const size_t input_count = 1 + random() % 3;
    const auto program = MakeProgram(accelerator, sizes, input_count);
    const int64_t rows = 1 + static_cast<int64_t>(random() % 100);
    std::vector<std::vector<float>> inputs(input_count, std::vector<float>(rows));
    std::vector<const char*> from;
    for (auto& input : inputs) {
      for (float& element : input) element = static_cast<float>(random() % 1000);
      from.push_back(reinterpret_cast<const char*>(input.data()));
    }
    std::vector<float> output(rows + 1, -1);
    ASSERT_TRUE(RunThere(*program, rows, from, {reinterpret_cast<char*>(output.data())}).ok());
    for (int64_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (const auto& input : inputs) sum += input[row];
      ASSERT_EQ(output[row], sum * kFactor) << "row " << row << " of " << rows;
    }
    EXPECT_EQ(output[rows], -1) << "a row too many was written";
  }
}

TEST_F(PjrtTest, ThreadsRunOneProgramAtOnce) {
  const auto program = MakeProgram(MakeAccelerator(), {1, 8}, 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&program, thread] {
      for (int i = 0; i < 200; ++i) {
        const std::vector<float> input = {static_cast<float>(thread), static_cast<float>(i)};
        std::vector<float> output(2);
        EXPECT_TRUE(RunThere(*program, 2, {reinterpret_cast<const char*>(input.data())},
                             {reinterpret_cast<char*>(output.data())})
                        .ok());
        EXPECT_EQ(output, (std::vector<float>{input[0] * kFactor, input[1] * kFactor}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(PjrtTest, ParametersThatDoNotFitLeaveNothing) {
  const auto accelerator = MakeAccelerator();
  controls_->memory_bytes_max = 3 * sizeof(float);
  const std::vector<float> large(2);
  const HostTensor tensor{PJRT_Buffer_Type_F32, {2}, large.data(), 2 * sizeof(float)};
  DeviceParameters parameters(accelerator, "model", {tensor, tensor});
  EXPECT_EQ(parameters.Upload(/*run_bytes=*/0).code(), Code::kResourceExhausted);
  EXPECT_EQ(accelerator->memory().ChargedBytes("model").first, 0);
  EXPECT_EQ(controls_->live_buffers, 0);
  EXPECT_EQ(controls_->used_bytes, 0);
}

TEST_F(PjrtTest, AFailedRunGivesItsErrorAndFreesItsBuffers) {
  const auto program = MakeProgram(MakeAccelerator(), {4}, 2);
  const int64_t buffers = controls_->live_buffers;
  const std::vector<float> input(3);
  const auto* const elements = reinterpret_cast<const char*>(input.data());
  std::vector<float> output(3);
  const auto run = [&] {
    return RunThere(*program, 3, {elements, elements}, {reinterpret_cast<char*>(output.data())});
  };
  controls_->fails_runs = true;
  EXPECT_EQ(run().code(), Code::kInternal);
  controls_->fails_runs = false;
  controls_->memory_bytes_max = 2 * sizeof(float);
  EXPECT_EQ(run().code(), Code::kResourceExhausted);
  controls_->memory_bytes_max = INT64_MAX;
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(controls_->live_buffers, buffers);
}

// Each size has pinned buffers, whatever the number of runs and versions, and of rows in a run. The
// parameters of all versions share some more.
TEST_F(PjrtTest, RunsCopyFromAndToPinnedMemory) {
  const auto accelerator = MakeAccelerator();
  for (int version = 1; version <= 3; ++version) {
    const auto program = MakeProgram(accelerator, {1, 8, 32}, 2);
    const int64_t buffer_bytes = 3 * 64 + 3 * 64 + 3 * 128;
    EXPECT_EQ(accelerator->staging_bytes(),
              kUploadBytes + StagingPool::kBuffersAtOnce * buffer_bytes);
    EXPECT_EQ(accelerator->State().staging_bytes, accelerator->staging_bytes());
    for (int run = 0; run < 20; ++run) {
      for (const int64_t rows : {1, 5, 8, 32}) {
        const std::vector<float> input(rows, 1);
        const auto* const elements = reinterpret_cast<const char*>(input.data());
        std::vector<float> output(rows);
        auto* const to = reinterpret_cast<char*>(output.data());
        ASSERT_TRUE(RunThere(*program, rows, {elements, elements}, {to}).ok());
        EXPECT_EQ(output, std::vector<float>(rows, 2 * kFactor));
      }
    }
    EXPECT_EQ(controls_->pin_count, 1 + 3 * version);
    EXPECT_EQ(controls_->live_pins, 1 + 3);
    EXPECT_EQ(controls_->copies_from_pinned, (1 + 80) * version);
    EXPECT_EQ(controls_->copies_to_pinned, 80 * version);
  }
  EXPECT_EQ(controls_->live_pins, 1);
  EXPECT_EQ(accelerator->staging_bytes(), kUploadBytes);
}

// Pinning and unpinning stop all runs, so a swap does neither.
TEST_F(PjrtTest, VersionsOfAModelShareStagingBuffers) {
  const auto accelerator = MakeAccelerator();
  auto before = MakeProgram(accelerator, {1, 8, 32}, 2);
  const int64_t pins = controls_->pin_count;
  const int64_t live = controls_->live_pins;
  const int64_t bytes = accelerator->staging_bytes();
  for (int swap = 0; swap < 3; ++swap) {
    auto after = MakeProgram(accelerator, {1, 8, 32}, 2);
    before = std::move(after);
    EXPECT_EQ(controls_->live_pins, live);
  }
  EXPECT_EQ(controls_->pin_count, pins);
  EXPECT_EQ(accelerator->staging_bytes(), bytes);
  EXPECT_NE(accelerator->staging().Get("another", 128), accelerator->staging().Get("model", 128));
  EXPECT_EQ(accelerator->staging_bytes(), bytes) << "the pools ended with their last owners";
}

TEST_F(PjrtTest, APluginThatPinsNothingRunsAllTheSame) {
  controls_->pins = false;
  const auto program = MakeProgram(MakeAccelerator(), {8}, 1);
  for (const int64_t rows : {5, 8, 13}) {
    EXPECT_EQ(RunOnes(*program, rows), std::vector<float>(rows, kFactor));
  }
  EXPECT_EQ(controls_->pin_count, 0);
}

// Buffers are bounded: by their number for each size, and by the accelerator's budget.
TEST_F(PjrtTest, StagingBuffersAreFewAndWithinTheBudget) {
  const auto accelerator = MakeAccelerator();
  auto pool = accelerator->MakeStaging(Accelerator::kStagingBytesMax / 2);
  std::vector<StagingPool::Lease> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(pool->Take());
  EXPECT_NE(leases[1].data(), nullptr);
  EXPECT_EQ(leases[2].data(), nullptr) << "the budget is used up";
  HeapMemory memory;
  const auto program = MakeProgram(accelerator, {8}, 1, /*needs_exact_rows=*/false, &memory);
  for (const int64_t rows : {5, 8}) {
    EXPECT_EQ(RunOnes(*program, rows), std::vector<float>(rows, kFactor)) << "in other memory";
  }
  EXPECT_EQ(memory.taken_count, 2);
  EXPECT_EQ(controls_->copies_from_pinned, 0);
  leases.clear();
  EXPECT_NE(pool->Take().data(), nullptr);
  EXPECT_EQ(controls_->pin_count, 2) << "a buffer is lent again";
  pool.reset();
  const auto small = accelerator->MakeStaging(1);
  for (size_t i = 0; i < StagingPool::kBuffersMax; ++i) leases.push_back(small->Take());
  EXPECT_NE(leases.back().data(), nullptr);
  EXPECT_EQ(small->Take().data(), nullptr);
  EXPECT_EQ(controls_->pin_count, 2 + StagingPool::kBuffersMax / StagingPool::kBuffersAtOnce);
  leases.clear();
}

// The CPU takes such a run. It is refused before its turn, and other runs do not wait for it.
TEST_F(PjrtTest, ARunWithoutMemoryForItsInputsIsRefused) {
  const auto accelerator = MakeAccelerator();
  auto all = accelerator->MakeStaging(Accelerator::kStagingBytesMax / 2);
  const std::array<StagingPool::Lease, 2> leases = {all->Take(), all->Take()};
  HeapMemory memory;
  memory.is_there = false;
  for (HeapMemory* const source : {&memory, static_cast<HeapMemory*>(nullptr)}) {
    const auto program = MakeProgram(accelerator, {8}, 1, /*needs_exact_rows=*/false, source);
    std::array<float, 8> block{};
    EXPECT_EQ(RunThere(*program, 8, {reinterpret_cast<const char*>(block.data())},
                       {reinterpret_cast<char*>(block.data())})
                  .code(),
              Code::kResourceExhausted);
  }
  EXPECT_EQ(controls_->run_count, 0);
  EXPECT_EQ(accelerator->turns().busy_ns(), 0);
}

// A task that holds its thread until it is told.
class HoldingTask final : public DriverThread::Task {
 public:
  void Run() override {
    mark = base::ThisCrashMark();
    has_begun = true;
    while (!may_end) std::this_thread::yield();
  }

  std::atomic<uint32_t> mark{0};  // of the version that a crash would be blamed on
  std::atomic<bool> has_begun{false};
  std::atomic<bool> may_end{false};
};

// A load must not take an upload for done that the end of the accelerator has dropped.
TEST(DriverThread, AnEndTellsItsCallersWhatWasNotRun) {
  auto driver = std::make_unique<DriverThread>("driver");
  DriverThread* const borrowed = driver.get();
  HoldingTask first;
  HoldingTask second;
  bool was_first_run = false;
  bool was_second_run = true;
  std::thread first_caller([&] { was_first_run = borrowed->Perform(&first); });
  while (!first.has_begun) std::this_thread::yield();
  std::thread second_caller([&] { was_second_run = borrowed->Perform(&second); });
  while (borrowed->waiting_count() == 0) std::this_thread::yield();
  std::thread end([&] { driver.reset(); });
  second_caller.join();
  EXPECT_FALSE(was_second_run);
  EXPECT_FALSE(second.has_begun);
  first.may_end = true;
  first_caller.join();
  EXPECT_TRUE(was_first_run);
  end.join();
}

// The caller does not wait, so its version may have ended, and another one may have its mark.
TEST(DriverThread, ATaskThatIsRunLaterIsOfNoVersion) {
  DriverThread driver("driver");
  HoldingTask first;
  const auto later = std::make_shared<HoldingTask>();
  driver.Request(&first);
  while (!first.has_begun) std::this_thread::yield();
  {
    const auto caller = base::CrashScope::For(7);
    EXPECT_FALSE(driver.PerformFor(later, /*limit_ns=*/0, DriverThread::IfLate::kRunLater));
  }
  first.may_end = true;
  while (!later->has_begun) std::this_thread::yield();
  EXPECT_EQ(later->mark, 0);
  later->may_end = true;
  driver.AwaitAll();
}

TEST(PackedTensors, TensorsNeverOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<size_t> bytes(random() % 6);
    for (size_t& tensor : bytes) tensor = random() % 300;
    const PackedTensors packed(bytes);
    ASSERT_EQ(packed.offsets.size(), bytes.size());
    size_t end = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(packed.offsets[i] % PackedTensors::kLineBytes, 0);
      EXPECT_GE(packed.offsets[i], end);
      EXPECT_LT(packed.offsets[i], end + PackedTensors::kLineBytes);
      end = packed.offsets[i] + bytes[i];
    }
    EXPECT_EQ(packed.bytes, PackedTensors::RoundUp(end, PackedTensors::kWordBytes));
  }
}

// No two leases share memory, however they are taken and returned, and all of a lease may be
// written.
TEST_F(PjrtTest, LentBuffersNeverOverlap) {
  const auto accelerator = MakeAccelerator();
  std::mt19937 random(1);
  for (const size_t bytes : {1, 64, 100, 5000, 3 << 20}) {
    const auto pool = accelerator->MakeStaging(bytes);
    std::list<StagingPool::Lease> leases;
    for (int step = 0; step < 300; ++step) {
      if (random() % 2 == 0 && !leases.empty()) {
        leases.erase(std::next(leases.begin(), random() % leases.size()));
        continue;
      }
      StagingPool::Lease lease = pool->Take();
      if (lease.data() == nullptr) continue;
      std::memset(lease.data(), step, bytes);
      for (const StagingPool::Lease& other : leases) {
        ASSERT_TRUE(lease.data() + bytes <= other.data() || other.data() + bytes <= lease.data())
            << step;
      }
      leases.push_back(std::move(lease));
    }
  }
}

TEST_F(PjrtTest, RunsAreCountedByTheirPrograms) {
  const auto program = MakeProgram(MakeAccelerator(), {1, 8}, 1);
  for (const int64_t rows : {1, 1, 3, 8, 9}) RunOnes(*program, rows);
  program->counts().CountCpuRun(CpuReason::kShape);
  const RunFigures figures = program->counts().Figures("rows");
  EXPECT_EQ(figures.signature, "rows");
  EXPECT_EQ(figures.sizes, (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(figures.run_counts, (std::vector<int64_t>{3, 3}));  // 9 rows are a run of 8 and of 1
  EXPECT_EQ(figures.row_counts, (std::vector<int64_t>{3, 19}));
  EXPECT_EQ(figures.cpu_run_counts, (std::array<int64_t, kCpuReasonCount>{1, 0, 0, 0, 0}));
}

// Most of the runs are not timed, which would wait for each of their stages.
TEST_F(PjrtTest, ARunBeginsOnceItsInputsAreThere) {
  const auto program = MakeProgram(MakeAccelerator(), {4}, 1);
  controls_->transfer_in_ns = 100'000;
  for (int run = 0; run < 20; ++run) {
    EXPECT_EQ(RunOnes(*program, 4), std::vector<float>(4, kFactor));
  }
  EXPECT_EQ(controls_->run_count, 20);
  EXPECT_EQ(controls_->early_run_count, 0);
}

// The times of a device's own steps are found again, each in its stage.
TEST_F(PjrtTest, TheStagesOfARunAreTimed) {
  const auto program = MakeProgram(MakeAccelerator(), {4}, 2);
  controls_->transfer_in_ns = 1'000'000;
  controls_->run_ns = 5'000'000;
  controls_->transfer_out_ns = 2'000'000;
  const std::vector<float> input(3, 1);
  const auto* const elements = reinterpret_cast<const char*>(input.data());
  std::vector<float> output(3);
  ASSERT_TRUE(
      RunThere(*program, 3, {elements, elements}, {reinterpret_cast<char*>(output.data())}).ok());
  EXPECT_EQ(output, std::vector<float>(3, 2 * kFactor));
  const RunFigures figures = program->counts().Figures("");
  EXPECT_EQ(figures.timed_run_count, 1);
  EXPECT_GE(figures.stage_ns[static_cast<size_t>(RunStage::kTransferIn)], 900'000);
  EXPECT_GE(figures.stage_ns[static_cast<size_t>(RunStage::kRun)], 4'900'000);
  EXPECT_GE(figures.stage_ns[static_cast<size_t>(RunStage::kTransferOut)], 1'900'000);
}

// With equal times of a transfer and of a run, a third run is uploaded while the second is computed
// and the outputs of the first are copied: n long runs take about n times as long as one
// computation.
TEST_F(PjrtTest, LongRunsUploadComputeAndCopyAtOnce) {
  const auto program = MakeProgram(MakeAccelerator(), {4}, 1);
  controls_->is_serial = true;
  controls_->transfer_in_ns = controls_->run_ns = controls_->transfer_out_ns = 20'000'000;
  RunOnes(*program, 4);  // teaches the cost
  controls_->transfer_in_begin_ns.clear();
  controls_->transfer_out_end_ns.clear();
  constexpr size_t kThreads = 4;
  constexpr size_t kRunsOfThread = 4;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&program] {
      for (size_t run = 0; run < kRunsOfThread; ++run) {
        EXPECT_EQ(RunOnes(*program, 4), std::vector<float>(4, kFactor));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<int64_t>& uploads = controls_->transfer_in_begin_ns;
  const std::vector<int64_t>& copies = controls_->transfer_out_end_ns;
  ASSERT_EQ(uploads.size(), kThreads * kRunsOfThread);
  ASSERT_EQ(copies.size(), uploads.size());
  size_t overlaps = 0;
  for (size_t run = 2; run < uploads.size(); ++run) overlaps += uploads[run] < copies[run - 2];
  // Never, if a turn lasted until the outputs are there. A slow test machine may miss some.
  EXPECT_GE(overlaps, uploads.size() / 2);
}

// A run cannot be interrupted, so a model with long runs would delay its neighbours by each of
// them.
TEST_F(PjrtTest, RunsAreShortWhileModelsShareTheDevice) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {1, 8}, 1);
  const auto exact = MakeProgram(accelerator, {1, 8}, 1, /*needs_exact_rows=*/true);
  controls_->row_ns = 10'000'000;
  const auto runs_of = [&](int64_t rows, const RowProgram& of) {
    const int64_t before = controls_->run_count;
    EXPECT_EQ(RunOnes(of, rows), std::vector<float>(rows, kFactor));
    return controls_->run_count - before;
  };
  for (const int64_t rows : {1, 8}) {
    EXPECT_EQ(runs_of(rows, *program), 1) << "teaches the cost";
    EXPECT_EQ(runs_of(rows, *exact), 1) << "teaches the cost";
  }
  EXPECT_FALSE(accelerator->turns().IsShared());
  const auto use_by_another = [&] {
    return accelerator->turns().Take("other", /*is_low=*/false, /*cost_ns=*/1,
                                     DeviceTurns::kNoDeadline);
  };
  EXPECT_TRUE(use_by_another().ok());
  EXPECT_TRUE(accelerator->turns().IsShared());
  EXPECT_EQ(runs_of(8, *exact), 1) << "rows that depend on each other are never cut";
  EXPECT_TRUE(use_by_another().ok());
  EXPECT_GT(runs_of(8, *program), 1);
}

int64_t ChosenRows(const std::vector<std::pair<int64_t, int64_t>>& costs_ns) {
  PieceChoice choice;
  for (const auto& [rows, cost_ns] : costs_ns) choice.Add(rows, cost_ns);
  return choice.rows();
}

TEST(PieceChoice, ARunIsShortOrTakesTwiceTheShortest) {
  EXPECT_EQ(ChosenRows({{1, 50'000}, {8, 300'000}, {64, 2'400'000}}), 8);
  EXPECT_EQ(ChosenRows({{1, 100'000}, {8, 800'000}, {64, 6'400'000}}), 1);
  EXPECT_EQ(ChosenRows({{1, 200'000}, {8, 220'000}, {64, 400'000}}), 64);
  EXPECT_EQ(ChosenRows({{1, 20'100'000}, {8, 20'800'000}, {64, 26'400'000}, {512, 71'200'000}}),
            64);
  EXPECT_EQ(ChosenRows({{32, 50'000'000}, {128, 150'000'000}}), 32);
}

TEST(PieceChoice, AnUnknownSizeIsTried) {
  EXPECT_EQ(ChosenRows({{1, 0}, {8, 0}, {64, 0}}), 64);
  EXPECT_EQ(ChosenRows({{1, 400'000}, {8, 0}, {64, 5'000'000}}), 8);
  EXPECT_EQ(ChosenRows({{1, 0}, {8, 20'800'000}, {64, 26'400'000}, {512, 71'000'000}}), 64);
}

TEST(PieceChoice, OneSlowRunRulesNoSizeOut) {
  EXPECT_EQ(ChosenRows({{1, 10'000}, {8, 900'000'000}, {64, 300'000}}), 64);
}

// A run waits for the turns of other models, or until its deadline.
TEST_F(PjrtTest, ARunWaitsForItsTurn) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {1}, 1);
  DeviceTurns& turns = accelerator->turns();
  constexpr int64_t kLongNs = 10'000'000;
  auto first = turns.Take("other", /*is_low=*/false, kLongNs, DeviceTurns::kNoDeadline);
  auto second = turns.Take("other", /*is_low=*/false, kLongNs, DeviceTurns::kNoDeadline);
  const float input = 1;
  float output = 0;
  const auto run = [&](int64_t deadline_ns) {
    return program->Run(*program->parameters().Pin(), 1, {reinterpret_cast<const char*>(&input)},
                        {reinterpret_cast<char*>(&output)}, deadline_ns);
  };
  constexpr int64_t kPatienceNs = 2'000'000;
  EXPECT_EQ(run(base::MonotonicNs() + kPatienceNs).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(controls_->run_count, 0);
  std::thread waiting([&] { EXPECT_TRUE(run(DeviceTurns::kNoDeadline).ok()); });
  base::SleepNs(kPatienceNs);
  first.value().End();
  second.value().End();
  waiting.join();
  EXPECT_EQ(output, kFactor);
  EXPECT_EQ(controls_->run_count, 1);
}

TEST_F(PjrtTest, FewRunsAreTimed) {
  const auto program = MakeProgram(MakeAccelerator(), {1}, 1);
  const int64_t runs = 3 * RunCounts::kTimedOneOf;
  for (int64_t run = 0; run < runs; ++run) RunOnes(*program, 1);
  EXPECT_EQ(program->counts().Figures("").timed_run_count, RunCounts::kTimedFirst + 2);
}

TEST_F(PjrtTest, TheMemoryOfADeviceIsCounted) {
  const auto accelerator = MakeAccelerator();
  controls_->memory_bytes_max = 1'000;
  const auto program = MakeProgram(accelerator, {1}, 1);
  const auto memory = accelerator->Memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory.value().used_bytes, static_cast<int64_t>(sizeof(kFactor)));
  EXPECT_EQ(memory.value().limit_bytes, 1'000);
  controls_->counts_memory = false;
  EXPECT_EQ(accelerator->Memory().status().code(), Code::kUnimplemented);
}

// Tells what fails on a device from what fails because of it.
TEST_F(PjrtTest, ADeviceThatFailsDoesNotRespond) {
  const auto accelerator = MakeAccelerator();
  EXPECT_TRUE(accelerator->Responds());
  controls_->memory_bytes_max = 0;
  EXPECT_TRUE(accelerator->Responds()) << "it is full";
  controls_->fails_transfers = true;
  EXPECT_FALSE(accelerator->Responds());
  controls_->fails_transfers = false;
  EXPECT_TRUE(accelerator->Responds());
}

// A device on which something is under way for ever, which is never freed.
class HangingRunTest : public PjrtTest {
 protected:
  HangingRunTest() : program_(MakeProgram(accelerator_, {1, 2}, 1)) {}
  ~HangingRunTest() override {
    program_.reset();
    accelerator_.reset();
    *controls_ = {};
  }

  base::Status Run() {
    const float input = 1;
    float output = 0;
    return RunThere(*program_, 1, {reinterpret_cast<const char*>(&input)},
                    {reinterpret_cast<char*>(&output)});
  }

  static constexpr int64_t kNeverNs = int64_t{1} << 60U;
  AcceleratorOptions options_ = [] {
    AcceleratorOptions options;
    options.stall_ns = 50'000'000;
    return options;
  }();
  std::shared_ptr<Accelerator> accelerator_ = MakeAccelerators(options_).front();
  std::unique_ptr<RowProgram> program_;
};

TEST_F(HangingRunTest, LosesTheDeviceWithAllThatItUses) {
  for (int64_t FakePjrtControls::*const step :
       {&FakePjrtControls::transfer_in_ns, &FakePjrtControls::run_ns,
        &FakePjrtControls::transfer_out_ns}) {
    program_.reset();
    accelerator_.reset();
    *controls_ = {};
    accelerator_ = MakeAccelerators(options_).front();
    program_ = MakeProgram(accelerator_, {1, 2}, 1);
    controls_->*step = kNeverNs;
    const base::Status ran = Run();
    EXPECT_EQ(ran.code(), Code::kUnavailable) << ran.message();
    EXPECT_TRUE(accelerator_->is_lost());
    EXPECT_TRUE(accelerator_->State().is_failing);
    controls_->*step = 0;
    const int64_t run_count = controls_->run_count;
    EXPECT_NE(Run().message().find("start the server anew"), std::string::npos);
    EXPECT_EQ(controls_->run_count, run_count) << "a run would hang, too";
    EXPECT_EQ(accelerator_->turns().waiting_count(), 0U);
    // The version's end waits for nothing, and frees nothing that the device may use.
    const int64_t live_buffers = controls_->live_buffers;
    program_.reset();
    EXPECT_EQ(controls_->live_buffers, live_buffers);
    EXPECT_EQ(controls_->live_executables, 2) << "the driver may hang in a call that frees one";
    EXPECT_GT(controls_->live_pins, 0);
    const auto [parameter_bytes, run_bytes] = accelerator_->memory().ChargedBytes("model");
    EXPECT_EQ(parameter_bytes, 4);
    EXPECT_GT(run_bytes, 0);
    accelerator_.reset();
    EXPECT_EQ(controls_->live_clients, 1) << "as in one that frees the client";
  }
}

// The plugin's threads are paused, too.
TEST_F(HangingRunTest, APauseOfTheProcessLosesNoDevice) {
  program_.reset();
  options_.stall_ns = 1'000'000'000;
  accelerator_ = MakeAccelerators(options_).front();
  program_ = MakeProgram(accelerator_, {1, 2}, 1);
  controls_->run_ns = 300'000'000;
  const pid_t paused = getpid();
  const pid_t child = fork();
  if (child == 0) {
    base::SleepNs(100'000'000);
    kill(paused, SIGSTOP);
    base::SleepNs(1'500'000'000);
    kill(paused, SIGCONT);
    _exit(0);
  }
  const base::Status ran = Run();
  EXPECT_TRUE(ran.ok()) << ran.message();
  EXPECT_FALSE(accelerator_->is_lost());
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(HangingRunTest, EndsTheWaitOfOthers) {
  controls_->run_ns = kNeverNs;
  std::vector<std::future<base::Status>> runs;
  for (int i = 0; i < 6; ++i) {
    runs.push_back(std::async(std::launch::async, [&] { return Run(); }));
  }
  for (auto& run : runs) EXPECT_EQ(run.get().code(), Code::kUnavailable);
}

// Waits until the parameters are there again, which the first Pin asks for.
std::shared_ptr<const ParameterCopy> AwaitCopy(DeviceParameters* parameters) {
  for (;;) {
    if (auto copy = parameters->Pin()) return copy;
    base::SleepNs(100'000);
  }
}

constexpr float kParameters[4] = {1, 2, 3, 4};
const std::vector<HostTensor> kSixteenBytes = {
    {PJRT_Buffer_Type_F32, {4}, kParameters, sizeof(kParameters)}};

// A copy that has been idle gives way, and comes back once there is room; never while it is used.
TEST_F(PjrtTest, AnIdleCopyGivesWayAndComesBack) {
  const auto accelerator = MakeAccelerator();
  accelerator->memory().SetLimit(40);
  DeviceParameters before(accelerator, "model", kSixteenBytes);
  ASSERT_TRUE(before.Upload(/*run_bytes=*/8).ok());
  auto pinned = before.Pin();
  ASSERT_NE(pinned, nullptr);
  auto after = std::make_unique<DeviceParameters>(accelerator, "model", kSixteenBytes);
  accelerator->memory().SetLimit(30);
  EXPECT_EQ(after->Upload(8).code(), Code::kResourceExhausted) << "the other copy is in use";
  pinned.reset();
  EXPECT_TRUE(after->Upload(8).ok());
  EXPECT_EQ(controls_->live_buffers, 1);
  EXPECT_EQ(before.Pin(), nullptr);
  EXPECT_EQ(before.figures().resident_bytes, 0);
  EXPECT_EQ(before.figures().drop_count, 1);
  after.reset();
  EXPECT_NE(AwaitCopy(&before), nullptr);
  EXPECT_EQ(before.figures().resident_bytes, 16);
  EXPECT_EQ(before.figures().upload_count, 2);
}

// A version whose upload waits ends at once, and the waiting upload with it.
TEST_F(PjrtTest, ParametersThatEndAreNotUploaded) {
  const auto accelerator = MakeAccelerator();
  accelerator->memory().SetLimit(8);
  auto parameters = std::make_unique<DeviceParameters>(accelerator, "model", kSixteenBytes);
  EXPECT_EQ(parameters->Upload(0).code(), Code::kResourceExhausted);
  EXPECT_EQ(parameters->Pin(), nullptr);
  parameters.reset();
  EXPECT_EQ(controls_->live_buffers, 0);
}

// A run that asks for parameters whose upload takes long does not have them sent twice.
TEST_F(PjrtTest, ALongUploadIsDoneOnce) {
  const auto accelerator = MakeAccelerator();
  controls_->transfer_in_ns = DeviceParameters::kRetryNs * 5 / 4;
  DeviceParameters parameters(accelerator, "model", kSixteenBytes);
  EXPECT_NE(AwaitCopy(&parameters), nullptr);
  controls_->transfer_in_ns = 0;
  DeviceParameters behind(accelerator, "model", kSixteenBytes);
  EXPECT_NE(AwaitCopy(&behind), nullptr) << "the queue has done all before it";
  EXPECT_EQ(parameters.figures().upload_count, 1);
  EXPECT_EQ(accelerator->memory().ChargedBytes("model"), (std::pair<int64_t, int64_t>(32, 0)));
}

TEST_F(PjrtTest, AnUploadThatFailsIsNotAskedForAgain) {
  const auto accelerator = MakeAccelerator();
  DeviceParameters parameters(accelerator, "model", kSixteenBytes);
  EXPECT_TRUE(parameters.upload_error().ok());
  controls_->fails_transfers = true;
  while (parameters.upload_error().ok()) {
    EXPECT_EQ(parameters.Pin(), nullptr);
    base::SleepNs(100'000);
  }
  EXPECT_EQ(parameters.upload_error().code(), Code::kInternal);
  controls_->fails_transfers = false;
  EXPECT_EQ(parameters.Pin(), nullptr);
  DeviceParameters behind(accelerator, "model", kSixteenBytes);
  EXPECT_NE(AwaitCopy(&behind), nullptr);
  EXPECT_EQ(parameters.figures().upload_count, 0);
}

// A plugin that copies only whole tensors gets the next ones when those before have arrived.
TEST_F(PjrtTest, ALargeUploadOfWholeTensorsIsSentInParts) {
  controls_->transfers_parts = false;
  const auto plugin = Plugin::Open(FAKE_PJRT_PLUGIN);
  const auto accelerator = Accelerator::MakeAll(plugin.value(), {}).value().front();
  const std::vector<float> part(ParameterUpload::kUnderWayBytes / sizeof(float), 1);
  const HostTensor tensor{PJRT_Buffer_Type_F32,
                          {static_cast<int64_t>(part.size())},
                          part.data(),
                          part.size() * sizeof(float)};
  const HostTensor small{PJRT_Buffer_Type_F32, {1}, part.data(), sizeof(float)};
  controls_->transfer_in_ns = 50'000'000;
  DeviceParameters parameters(accelerator, "model", {small, tensor, small, tensor, small});
  ASSERT_TRUE(parameters.Upload(/*run_bytes=*/0).ok());
  EXPECT_EQ(controls_->transfers_under_way_max, 2);
  EXPECT_NE(parameters.Pin(), nullptr);
}

TEST_F(PjrtTest, ARunIsChargedBeforeItStarts) {
  controls_->temporary_bytes = 100;
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {4}, 2);
  EXPECT_EQ(program->run_bytes_max(), 100 + (64 + 16) + 16) << "inputs begin at cache lines";
  accelerator->memory().SetQuota("model", program->run_bytes_max() + 3);
  const std::vector<float> input(4, 1);
  const auto* const elements = reinterpret_cast<const char*>(input.data());
  std::vector<float> output(4);
  const auto run = [&] {
    return RunThere(*program, 4, {elements, elements}, {reinterpret_cast<char*>(output.data())})
        .code();
  };
  EXPECT_EQ(run(), Code::kResourceExhausted) << "the parameter takes 4 bytes";
  EXPECT_EQ(controls_->run_count, 0);
  accelerator->memory().SetQuota("model", program->run_bytes_max() + 4);
  EXPECT_EQ(run(), Code::kOk);
  EXPECT_EQ(accelerator->memory().ChargedBytes("model"), (std::pair<int64_t, int64_t>(4, 0)));
}

// A program of the same function as Code, with another answer by which a test knows it.
constexpr float kAdded = 7;
std::unique_ptr<Executable> CompileTuned(const Accelerator& accelerator, int64_t rows) {
  const std::string code = std::to_string(rows) + " 1 " + std::to_string(kAdded);
  return std::move(accelerator.Compile(code).value());
}

// Runs `rows` ones as a trial of the program of `tried_rows` rows.
base::Status TryOnes(const RowProgram& program, int64_t rows, int64_t tried_rows,
                     std::vector<float>* output) {
  const TunedTrial trial(tried_rows);
  const std::vector<float> input(rows, 1);
  output->assign(rows, 0);
  return RunThere(program, rows, {reinterpret_cast<const char*>(input.data())},
                  {reinterpret_cast<char*>(output->data())});
}

TEST_F(PjrtTest, AnOfferedProgramIsUsedOnceATrialPassed) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {1, 4}, 1);
  std::vector<float> output;
  EXPECT_EQ(TryOnes(*program, 2, 4, &output).code(), Code::kNotFound) << "nothing is offered";
  ASSERT_TRUE(program->Offer(4, CompileTuned(*accelerator, 4)).ok());
  EXPECT_EQ(controls_->live_executables, 3);
  EXPECT_EQ(RunOnes(*program, 4), std::vector<float>(4, kFactor)) << "no request tries it";
  EXPECT_FALSE(program->UseOffered(4));
  for (const int64_t rows : {1, 3, 4, 9}) {
    EXPECT_TRUE(TryOnes(*program, rows, 4, &output).ok());
    EXPECT_EQ(output, std::vector<float>(rows, kFactor + kAdded));
  }
  EXPECT_EQ(TryOnes(*program, 1, 1, &output).code(), Code::kNotFound) << "another size";
  EXPECT_TRUE(program->UseOffered(4));
  EXPECT_EQ(RunOnes(*program, 4), std::vector<float>(4, kFactor + kAdded));
  EXPECT_EQ(RunOnes(*program, 1), std::vector<float>(1, kFactor));
  EXPECT_EQ(controls_->live_executables, 2) << "the one before is freed";
  EXPECT_FALSE(program->UseOffered(4));
}

TEST_F(PjrtTest, ATrialThatFailsChangesNothing) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {4}, 1);
  ASSERT_TRUE(program->Offer(4, CompileTuned(*accelerator, 4)).ok());
  std::vector<float> output;
  controls_->fails_runs = true;
  EXPECT_EQ(TryOnes(*program, 4, 4, &output).code(), Code::kInternal);
  controls_->fails_runs = false;
  EXPECT_FALSE(program->UseOffered(4));
  program->WithdrawOffered(4);
  EXPECT_EQ(TryOnes(*program, 4, 4, &output).code(), Code::kNotFound);
  EXPECT_EQ(RunOnes(*program, 4), std::vector<float>(4, kFactor));
  EXPECT_EQ(controls_->live_executables, 1);
}

TEST_F(PjrtTest, RowsOfAnExactProgramAreTriedTogether) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {4}, 1, /*needs_exact_rows=*/true);
  ASSERT_TRUE(program->Offer(4, CompileTuned(*accelerator, 4)).ok());
  std::vector<float> output;
  EXPECT_EQ(TryOnes(*program, 3, 4, &output).code(), Code::kNotFound);
  EXPECT_TRUE(TryOnes(*program, 4, 4, &output).ok());
}

// Both programs may run at once, so both find their memory.
TEST_F(PjrtTest, AnOfferedProgramIsCharged) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {4}, 1);
  controls_->code_bytes = 50;
  controls_->temporary_bytes = 100;
  DeviceMemory& memory = accelerator->memory();
  const int64_t run_bytes = 100 + 16 + 16;
  memory.SetQuota("model", 4 + 50 + run_bytes - 1);
  EXPECT_EQ(program->Offer(4, CompileTuned(*accelerator, 4)).code(), Code::kResourceExhausted)
      << "the parameters are not dropped, although they are idle";
  EXPECT_EQ(memory.ChargedBytes("model").first, 4);
  memory.SetQuota("model", 4 + 50 + run_bytes);
  ASSERT_TRUE(program->Offer(4, CompileTuned(*accelerator, 4)).ok());
  EXPECT_EQ(memory.ChargedBytes("model").first, 4 + 50);
  std::vector<float> output;
  EXPECT_TRUE(TryOnes(*program, 4, 4, &output).ok()) << "the largest run finds its memory";
  program->WithdrawOffered(4);
  EXPECT_EQ(memory.ChargedBytes("model").first, 4);
}

// Each run is of one program, and none fails, however often another one takes its place.
TEST_F(PjrtTest, ProgramsAreReplacedBesideRuns) {
  const auto accelerator = MakeAccelerator();
  const auto program = MakeProgram(accelerator, {4}, 1);
  controls_->run_ns = 100'000;
  constexpr int kThreads = 4;
  constexpr int kRunsOfThread = 100;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int run = 0; run < kRunsOfThread; ++run) {
        const std::vector<float> output = RunOnes(*program, 4);
        const bool is_tuned = output[0] != kFactor;
        EXPECT_EQ(output, std::vector<float>(4, is_tuned ? kFactor + kAdded : kFactor));
      }
      --running;
    });
  }
  int replaced = 0;
  for (; running > 0; ++replaced) {
    const bool is_tuned = replaced % 2 == 0;
    ASSERT_TRUE(program
                    ->Offer(4, is_tuned ? CompileTuned(*accelerator, 4)
                                        : std::move(accelerator->Compile(Code(4, 1)).value()))
                    .ok());
    std::vector<float> output;
    ASSERT_TRUE(TryOnes(*program, 4, 4, &output).ok());
    ASSERT_TRUE(program->UseOffered(4));
    EXPECT_EQ(controls_->live_executables, 1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(replaced, 1);
}

TEST_F(PjrtTest, AProgramIsCompiledOnceForACache) {
  const testing::TemporaryDirectory directory;
  const auto accelerator = MakeAccelerator();
  const ExecutableCache cache(directory.path());
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  EXPECT_EQ(controls_->compile_count, 1);
  EXPECT_EQ(controls_->load_count, 1);
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(5, 1)).ok());
  EXPECT_EQ(controls_->compile_count, 2);
}

// A driver may stop all runs while it loads a program or frees one, so a swap does neither.
TEST_F(PjrtTest, VersionsOfOneGraphShareAnExecutable) {
  const testing::TemporaryDirectory directory;
  const auto accelerator = MakeAccelerator();
  std::weak_ptr<const Executable> last;
  for (const std::string& path : {directory.path(), std::string()}) {
    const ExecutableCache cache(path);
    const int64_t compiled = controls_->compile_count;
    const int64_t loaded = controls_->load_count;
    auto first = cache.FindOrCompile(*accelerator, Code(4, 1)).value().executable;
    const auto other = cache.FindOrCompile(*accelerator, Code(5, 1)).value().executable;
    const auto second = cache.FindOrCompile(*accelerator, Code(4, 1)).value().executable;
    EXPECT_EQ(first, second);
    EXPECT_NE(first, other);
    first.reset();
    EXPECT_EQ(cache.FindOrCompile(*accelerator, Code(4, 1)).value().executable, second);
    EXPECT_EQ(controls_->compile_count, compiled + 2);
    EXPECT_EQ(controls_->load_count, loaded);
    last = second;
  }
  EXPECT_EQ(accelerator->State().shared_count, 4);
  EXPECT_TRUE(last.expired()) << "an executable is freed with its last version";
}

// The program is the one that was asked for, whatever a file of the cache holds.
TEST_F(PjrtTest, ABrokenFileOfACacheIsCompiledAnew) {
  const testing::TemporaryDirectory directory;
  const auto accelerator = MakeAccelerator();
  const ExecutableCache cache(directory.path());
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  const auto file = std::filesystem::directory_iterator(directory.path())->path();
  const auto whole = std::filesystem::file_size(file);
  for (const uintmax_t size : {uintmax_t{0}, whole / 2, whole - 3}) {
    std::filesystem::resize_file(file, size);
    const int64_t compiled = controls_->compile_count;
    ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
    EXPECT_EQ(controls_->compile_count, compiled + 1) << "cut to " << size;
    EXPECT_EQ(std::filesystem::file_size(file), whole) << "the file is whole again";
  }
}

// Autotuning would stall the runs of requests.
TEST_F(PjrtTest, AServingGpuGetsNoAutotunedProgram) {
  const testing::TemporaryDirectory directory;
  controls_->is_cuda = true;
  controls_->device_count = 2;
  const auto plugin = Plugin::Open(FAKE_PJRT_PLUGIN);
  ASSERT_TRUE(plugin.ok());
  const auto accelerators = Accelerator::MakeAll(plugin.value(), {});
  ASSERT_TRUE(accelerators.ok());
  const ExecutableCache cache(directory.path());
  using Counts = std::pair<int64_t, int64_t>;
  const auto find = [&](const Accelerator& accelerator, int64_t rows) {
    const bool has_autotuned = cache.HasAutotuned(accelerator, Code(rows, 1));
    const auto found = cache.FindOrCompile(accelerator, Code(rows, 1));
    EXPECT_TRUE(found.ok());
    EXPECT_EQ(found.value().is_autotuned, has_autotuned || accelerator.autotunes());
    return Counts(controls_->compile_count, controls_->untuned_compile_count);
  };
  const Accelerator& other = *accelerators.value()[0];
  const Accelerator& serving = *accelerators.value()[1];
  EXPECT_EQ(find(serving, 4), Counts(1, 0));
  serving.EndAutotuning();
  EXPECT_EQ(find(serving, 4), Counts(1, 0)) << "an autotuned program is loaded";
  EXPECT_EQ(find(serving, 5), Counts(2, 1));
  EXPECT_EQ(find(serving, 5), Counts(2, 1)) << "one that is not autotuned is loaded again";
  EXPECT_EQ(find(other, 5), Counts(3, 1)) << "an accelerator that may autotune does";
  EXPECT_EQ(find(serving, 5), Counts(3, 1));
  EXPECT_FALSE(ExecutableCache("").HasAutotuned(serving, Code(5, 1)));
}

// Another process may compile for a server that is ready.
TEST_F(PjrtTest, AProgramThatWasFilledInIsAutotuned) {
  const testing::TemporaryDirectory directory;
  controls_->is_cuda = true;
  const auto plugin = Plugin::Open(FAKE_PJRT_PLUGIN);
  ASSERT_TRUE(plugin.ok());
  const auto accelerators = Accelerator::MakeAll(plugin.value(), {});
  ASSERT_TRUE(accelerators.ok());
  const Accelerator& serving = *accelerators.value()[0];
  serving.EndAutotuning();
  const ExecutableCache cache(directory.path());
  EXPECT_FALSE(cache.FindOrCompile(serving, Code(4, 1)).value().is_autotuned);
  const auto compiler = AheadCompiler::Open(plugin.value(), "", 0.05F);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
  EXPECT_TRUE(cache.HasAutotuned(serving, Code(4, 1)));
  EXPECT_TRUE(cache.FindOrCompile(serving, Code(4, 1)).value().is_autotuned);
}

TEST_F(PjrtTest, AnAutotunedProgramThatIsNotLoadedHasTheReason) {
  const testing::TemporaryDirectory directory;
  const auto accelerator = MakeAccelerator();
  const ExecutableCache cache(directory.path());
  const auto code = [&] { return cache.FindAutotuned(*accelerator, Code(4, 1)).status().code(); };
  EXPECT_EQ(code(), base::Code::kNotFound);
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  for (const base::Code error : {base::Code::kResourceExhausted, base::Code::kInvalidArgument}) {
    controls_->load_error = static_cast<int64_t>(error);
    EXPECT_EQ(code(), error);
    EXPECT_TRUE(cache.HasAutotuned(*accelerator, Code(4, 1))) << "it is not compiled again";
  }
  controls_->load_error = 0;
  EXPECT_EQ(code(), base::Code::kOk);
}

TEST_F(PjrtTest, APluginOfAnotherMakerGetsNoOptionOfCuda) {
  const auto accelerator = MakeAccelerator();
  accelerator->EndAutotuning();
  ASSERT_TRUE(ExecutableCache("").FindOrCompile(*accelerator, Code(4, 1)).ok());
  EXPECT_EQ(controls_->untuned_compile_count, 0);
}

TEST_F(PjrtTest, APluginThatCannotSerializeCompilesEachTime) {
  const testing::TemporaryDirectory directory;
  const auto accelerator = MakeAccelerator();
  const ExecutableCache cache(directory.path());
  controls_->serializes = false;
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  EXPECT_EQ(controls_->compile_count, 2);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// A topology of the fake plugin is the kind of its device.
TEST_F(PjrtTest, ACacheFilledForATopologyServesItsDevice) {
  const testing::TemporaryDirectory directory;
  const ExecutableCache cache(directory.path());
  {
    const auto compiler = AheadCompiler::Open(plugin_.value(), "Fake");
    ASSERT_TRUE(compiler.ok()) << compiler.status().message();
    EXPECT_EQ(controls_->live_clients, 0) << "the device need not be there";
    ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
    ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
    EXPECT_EQ(compiler.value()->compiled_count(), 1);
  }
  const auto accelerator = MakeAccelerator();
  const auto found = cache.FindOrCompile(*accelerator, Code(4, 1));
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found.value().is_autotuned) << "nothing was tried out without the device";
  EXPECT_FALSE(cache.HasAutotuned(*accelerator, Code(4, 1)));
  EXPECT_EQ(accelerator->State().compiled_count, 0);
  EXPECT_EQ(accelerator->State().loaded_count, 1);
  EXPECT_EQ(controls_->compile_count, 1);
}

// A load's programs come from another process, which has no client.
TEST_F(PjrtTest, AnotherProcessCompilesForLoads) {
  const testing::TemporaryDirectory directory;
  const ExecutableCache cache(directory.path());
  controls_->is_cuda = true;
  const auto plugin = Plugin::Open(FAKE_PJRT_PLUGIN);
  ASSERT_TRUE(plugin.ok());
  const auto accelerators = Accelerator::MakeAll(plugin.value(), {});
  ASSERT_TRUE(accelerators.ok());
  const Accelerator& accelerator = *accelerators.value()[0];
  ASSERT_TRUE(accelerator.topology().has_value());
  const auto compiler = AheadCompiler::Open(plugin.value(), *accelerator.topology(), 0.0F,
                                            /*for_loads=*/true);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  EXPECT_EQ(controls_->live_clients, 1) << "the accelerator's";
  EXPECT_EQ(compiler.value()->target(), accelerator.target());
  ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
  EXPECT_EQ(controls_->untuned_compile_count, 1) << "as the load would compile it";
  EXPECT_FALSE(cache.Has(accelerator, Code(4, 1))) << "a start autotunes";
  accelerator.EndAutotuning();
  EXPECT_TRUE(cache.Has(accelerator, Code(4, 1)));
  const auto found = cache.FindOrCompile(accelerator, Code(4, 1));
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found.value().is_autotuned);
  EXPECT_FALSE(found.value().is_compiled);
  EXPECT_EQ(accelerator.State().compiled_count, 0);
  EXPECT_TRUE(ExecutableCache("").Has(accelerator, Code(4, 1))) << "a version has it";
  EXPECT_FALSE(cache.Has(accelerator, Code(5, 1)));
  EXPECT_TRUE(cache.FindOrCompile(accelerator, Code(5, 1)).value().is_compiled);
}

TEST_F(PjrtTest, OnlyCpusAreOpenedByAnotherProcess) {
  EXPECT_EQ(MakeAccelerator()->topology(), "Fake");
  controls_->shows_topology = false;
  EXPECT_EQ(MakeAccelerator()->topology(), std::nullopt);
  controls_->is_of_cpus = true;
  EXPECT_EQ(MakeAccelerator()->topology(), "");
}

TEST_F(PjrtTest, ACacheFilledForAnotherDeviceIsNotUsed) {
  const testing::TemporaryDirectory directory;
  const ExecutableCache cache(directory.path());
  const auto compiler = AheadCompiler::Open(plugin_.value(), "Another");
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
  const auto accelerator = MakeAccelerator();
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  EXPECT_EQ(accelerator->State().compiled_count, 1);
  EXPECT_EQ(accelerator->State().loaded_count, 0);
}

TEST_F(PjrtTest, ACacheIsFilledForADeviceThatIsThere) {
  const testing::TemporaryDirectory directory;
  const ExecutableCache cache(directory.path());
  const auto compiler = AheadCompiler::Open(plugin_.value(), "");
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  ASSERT_TRUE(cache.Fill(*compiler.value(), Code(4, 1)).written.ok());
  const auto accelerator = MakeAccelerator();
  EXPECT_EQ(compiler.value()->target(), accelerator->target());
  ASSERT_TRUE(cache.FindOrCompile(*accelerator, Code(4, 1)).ok());
  EXPECT_EQ(accelerator->State().compiled_count, 0);
}

TEST_F(PjrtTest, APluginWithoutTopologiesNamesTheRemedy) {
  controls_->has_topologies = false;
  const auto compiler = AheadCompiler::Open(plugin_.value(), "Fake");
  EXPECT_EQ(compiler.status().code(), Code::kUnimplemented);
  EXPECT_NE(compiler.status().message().find("leave the topology out"), std::string::npos);
}

TEST_F(PjrtTest, AProgramThatCannotBeKeptIsAnErrorAhead) {
  const testing::TemporaryDirectory directory;
  const auto compiler = AheadCompiler::Open(plugin_.value(), "Fake");
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  const ExecutableCache nowhere(directory.path() + "/nowhere");
  EXPECT_EQ(nowhere.Fill(*compiler.value(), Code(4, 1)).written.code(), Code::kFailedPrecondition);
  controls_->serializes = false;
  const ExecutableCache cache(directory.path());
  EXPECT_EQ(cache.Fill(*compiler.value(), Code(4, 1)).compiled.code(), Code::kUnimplemented);
  EXPECT_EQ(cache.Fill(*compiler.value(), "no program").compiled.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millpond::pjrt
