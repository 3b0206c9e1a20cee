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
  // Makes a compiler for the device that `topology` describes in the plugin's own words. For CUDA's
  // plugin these are a stream_executor.GpuTargetConfigProto as text. Without it, the first
  // accelerator of this machine is opened, and trials take `memory_fraction` of its memory at most.
  // Returns UNIMPLEMENTED if the plugin compiles for no device that is not there, and the plugin's
  // error if it does not understand `topology`.
  static base::StatusOr<std::shared_ptr<const AheadCompiler>> Open(
      const Plugin& plugin, const std::string& topology,
      float memory_fraction = AcceleratorOptions().memory_fraction);
  virtual ~AheadCompiler() = default;

  // Accelerator::target of the accelerators that it compiles for.
  const std::string& target() const { return target_; }
  // False if the device is not there, so nothing can be tried out.
  bool autotunes() const { return autotunes_; }
  // Compiles a program in the form of a serialized xla.HloModuleProto to the bytes that
  // Accelerator::LoadExecutable takes.
  base::StatusOr<std::string> Compile(std::string_view hlo) const;
  // The programs that were compiled.
  int64_t compiled_count() const { return compiled_count_.load(std::memory_order_relaxed); }

 protected:
  AheadCompiler(std::string target, bool autotunes)
      : target_(std::move(target)), autotunes_(autotunes) {}

 private:
  virtual base::StatusOr<std::string> MakeBytes(std::string_view hlo) const = 0;

  const std::string target_;
  const bool autotunes_;
  mutable std::atomic<int64_t> compiled_count_{0};
};

}  // namespace millpond::pjrt
