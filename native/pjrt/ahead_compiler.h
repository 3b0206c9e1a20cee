#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "native/base/status.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/plugin.h"

namespace millpond::pjrt {

// Compiles programs ahead of the loads that need them, for a sort of accelerator that need not be
// in this machine.
//
// Thread: any number at once.
class AheadCompiler {
 public:
  // The use of its programs.
  enum class Result {
    kAutotuned,    // the device is there, and all was tried out
    kForTopology,  // nothing could be tried out; a start takes them all the same
    kForLoad,      // what a load beside requests compiles, and only such loads take
  };

  // Makes a compiler for the device that `topology` describes in the plugin's own words. For CUDA's
  // plugin these are a stream_executor.GpuTargetConfigProto as text. Without it, the first
  // accelerator of this machine is opened, and trials take `memory_fraction` of its memory at most.
  // If it is `for_loads`, it compiles for a topology as Accelerator::Compile does without
  // autotuning. Returns UNIMPLEMENTED if the plugin compiles for no device that is not there, and
  // the plugin's error if it does not understand `topology`.
  static base::StatusOr<std::shared_ptr<const AheadCompiler>> Open(
      const Plugin& plugin, const std::string& topology,
      float memory_fraction = AcceleratorOptions().memory_fraction, bool for_loads = false);
  virtual ~AheadCompiler() = default;

  // Accelerator::target of the accelerators that it compiles for.
  const std::string& target() const { return target_; }
  Result result() const { return result_; }
  // Compiles a program in the form of a serialized xla.HloModuleProto to the bytes that
  // Accelerator::LoadExecutable takes.
  base::StatusOr<std::string> Compile(std::string_view hlo) const;
  // The programs that were compiled.
  int64_t compiled_count() const { return compiled_count_.load(std::memory_order_relaxed); }

 protected:
  AheadCompiler(std::string target, Result result) : target_(std::move(target)), result_(result) {}

 private:
  virtual base::StatusOr<std::string> MakeBytes(std::string_view hlo) const = 0;

  const std::string target_;
  const Result result_;
  mutable std::atomic<int64_t> compiled_count_{0};
};

}  // namespace millpond::pjrt
