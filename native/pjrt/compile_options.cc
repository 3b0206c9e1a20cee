#include "native/pjrt/compile_options.h"

namespace millpond::pjrt {
namespace {

// Fields of xla/pjrt/proto/compile_options.proto and xla/xla_data.proto, as tags of the wire
// format.
constexpr char kBuildOptions = 0x1a;
constexpr char kDeviceAssignment = 0x4a;
constexpr char kComputationDevices = 0x1a;
constexpr char kReplicaDeviceIds = 0x0a;
constexpr char kOptionOverrides = 0x3a;
constexpr char kMapKey = 0x0a;
constexpr char kMapValue = 0x12;
constexpr char kStringField = 0x0a;

// xla.ExecutableBuildOptionsProto { device_ordinal: -1 num_replicas: 1 num_partitions: 1 }
std::string OneDevice() { return "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01"; }

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>((value & 0x7fU) | 0x80U);
  return bytes + static_cast<char>(value);
}

// A field that is a message or a string of less than 128 bytes.
std::string Message(char tag, const std::string& content) {
  return std::string{tag, static_cast<char>(content.size())} + content;
}

}  // namespace

std::string OptionsForAnyDevice() { return Message(kBuildOptions, OneDevice()); }

std::string OptionsForDevice(int64_t device_id) {
  const std::string devices =
      Message(kComputationDevices, Message(kReplicaDeviceIds, Varint(device_id)));
  // xla.DeviceAssignmentProto { replica_count: 1 computation_count: 1 computation_devices … }
  const std::string assignment = Message(kDeviceAssignment, "\x08\x01\x10\x01" + devices);
  return Message(kBuildOptions, OneDevice() + assignment);
}

std::string WithoutAutotuning(const std::string& options) {
  return Message(kOptionOverrides, Message(kMapKey, "xla_gpu_autotune_level") +
                                       Message(kMapValue, Message(kStringField, "0"))) +
         options;
}

}  // namespace millpond::pjrt
