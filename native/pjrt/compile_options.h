#pragma once

#include <cstdint>
#include <string>

namespace millpond::pjrt {

// Returns a serialized xla.CompileOptionsProto for a program of one device, which the client
// chooses: its first one.
std::string OptionsForAnyDevice();
// The same for the device with this id, which is 0 or more.
std::string OptionsForDevice(int64_t device_id);
// Returns `options` for a compilation that does not autotune: XLA compiles several variants of a
// matrix product, runs each on the GPU, and takes the fastest. Other runs on that GPU wait
// meanwhile (docs/accelerators.md).
std::string WithoutAutotuning(const std::string& options);

}  // namespace millpond::pjrt
