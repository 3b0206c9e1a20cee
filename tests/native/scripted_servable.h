#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "native/servable/servable_entry.h"
#include "tests/native/fake_servable.h"
#include "tests/native/opaque_tensors.h"

namespace millpond::testing {

// Holds runs until it is opened, and counts those that have come.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Back to the start: closed, and no run has come.
  void Reset() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    arrived_count_ = 0;
  }
  // Within a run: waits until the gate is open or the run is to end, and returns the reason.
  base::Status Pass(const tensor::RunContext& run) {
    std::unique_lock lock(mutex_);
    arrived_count_ += 1;
    changed_.notify_all();
    // Wakes now and then, as a graph checks between two kernels if it may go on.
    while (!changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return is_open_; })) {
      if (run.is_cancelled != nullptr && *run.is_cancelled) {
        return {base::Code::kCancelled, "the run saw that it was cancelled"};
      }
    }
    return {};
  }
  void WaitForArrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_count_ >= count; });
  }
  int arrived_count() {
    const std::lock_guard lock(mutex_);
    return arrived_count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int arrived_count_ = 0;
};

// A servable of one signature, x -> x_back, y (x reversed). A test may watch its runs, hold them or
// make them fail. Its tensors are opaque_tensors.h's.
class ScriptedServable final : public FakeServable {
 public:
  ScriptedServable(servable::ServableId id, Script script)
      : FakeServable(std::move(id), {XToXBackAndY()}, AfterScript(std::move(script), Reverse)) {}

 private:
  static base::Status Reverse(const FakeRun& run) {
    const std::string& x = run.inputs.storage().tensors[0].bytes;
    run.result->Reset(run.outputs.size());
    auto& tensors = run.result->storage().tensors;
    if (run.outputs.Contains(0)) tensors[run.outputs.Rank(0)].bytes = x;
    if (run.outputs.Contains(1)) tensors[run.outputs.Rank(1)].bytes = Reversed(x);
    return {};
  }
};

// An entry of a ScriptedServable, which stays with the entry.
struct Scripted {
  Scripted(const std::string& name, int64_t version, Script script = {},
           std::shared_ptr<servable::RequestReservoir> reservoir = nullptr) {
    auto owned =
        std::make_unique<ScriptedServable>(servable::ServableId{name, version}, std::move(script));
    servable = owned.get();
    entry = std::make_shared<servable::ServableEntry>(std::move(owned), std::move(reservoir));
  }

  const ScriptedServable* servable;
  std::shared_ptr<servable::ServableEntry> entry;
};

}  // namespace millpond::testing
