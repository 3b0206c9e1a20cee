#include "native/pjrt/client.h"

namespace millpond::pjrt {
namespace {

// Memory is taken as it is needed, so that a server does not take a GPU from its neighbours.
std::vector<PJRT_NamedValue> CudaOptions(float memory_fraction) {
  PJRT_NamedValue fraction = NamedValue("memory_fraction");
  fraction.type = PJRT_NamedValue_kFloat;
  fraction.float_value = memory_fraction;
  PJRT_NamedValue preallocate = NamedValue("preallocate");
  preallocate.type = PJRT_NamedValue_kBool;
  preallocate.bool_value = false;
  return {fraction, preallocate};
}

}  // namespace

base::StatusOr<std::string> KindOf(const Api& api, PJRT_DeviceDescription* description) {
  MILLPOND_PJRT_ARGS(PJRT_DeviceDescription_Kind, kind);
  kind.device_description = description;
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_DeviceDescription_Kind(&kind),
                                "asking what sort of device it is");
  return std::string(kind.device_kind, kind.device_kind_size);
}

base::StatusOr<std::shared_ptr<const Client>> Client::Make(const Plugin& plugin,
                                                           float memory_fraction) {
  const Api& api = plugin.api();
  std::vector<PJRT_NamedValue> options;
  if (plugin.is_cuda()) options = CudaOptions(memory_fraction);
  MILLPOND_PJRT_ARGS(PJRT_Client_Create, create);
  create.create_options = options.data();
  create.num_options = options.size();
  MILLPOND_RETURN_IF_PJRT_ERROR(api, api->PJRT_Client_Create(&create),
                                "making a client of " + plugin.description());
  const std::shared_ptr<Client> client(new Client(plugin, create.client));
  MILLPOND_RETURN_IF_ERROR(client->AddVersion());
  return std::shared_ptr<const Client>(client);
}

Client::~Client() {
  MILLPOND_PJRT_ARGS(PJRT_Client_Destroy, destroy);
  destroy.client = client_;
  static_cast<void>(api_.ToStatus(api_->PJRT_Client_Destroy(&destroy), "freeing a client"));
}

base::Status Client::AddVersion() {
  MILLPOND_PJRT_ARGS(PJRT_Client_PlatformVersion, version);
  version.client = client_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_PlatformVersion(&version),
                                "asking for the version of " + description_);
  description_ += " " + std::string(version.platform_version, version.platform_version_size);
  return {};
}

base::StatusOr<std::vector<PJRT_Device*>> Client::Devices() const {
  MILLPOND_PJRT_ARGS(PJRT_Client_AddressableDevices, devices);
  devices.client = client_;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Client_AddressableDevices(&devices),
                                "listing the devices of " + description_);
  if (devices.num_addressable_devices == 0) {
    return base::NotFound(description_ + " finds no device");
  }
  return std::vector(devices.addressable_devices,
                     devices.addressable_devices + devices.num_addressable_devices);
}

base::StatusOr<PJRT_DeviceDescription*> Client::DescriptionOf(PJRT_Device* device) const {
  MILLPOND_PJRT_ARGS(PJRT_Device_GetDescription, description);
  description.device = device;
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Device_GetDescription(&description),
                                "asking for a device of " + description_);
  return description.device_description;
}

base::StatusOr<std::string> Client::KindOf(PJRT_Device* device) const {
  const base::StatusOr<PJRT_DeviceDescription*> description = DescriptionOf(device);
  if (!description.ok()) return description.status();
  return pjrt::KindOf(api_, description.value());
}

std::optional<std::string> Client::Topology() const {
  std::optional<std::string> topology = TargetConfig();
  if (!topology && IsOfCpus()) topology.emplace();
  return topology;
}

// Returns the option that describes the devices to PJRT_TopologyDescription_Create; nothing if the
// plugin does not show it. CUDA's has it as text.
std::optional<std::string> Client::TargetConfig() const {
  if (!MILLPOND_PJRT_HAS(api_, PJRT_Client_TopologyDescription) ||
      !MILLPOND_PJRT_HAS(api_, PJRT_TopologyDescription_Attributes)) {
    return {};
  }
  MILLPOND_PJRT_ARGS(PJRT_Client_TopologyDescription, topology);
  topology.client = client_;
  if (!api_.ToStatus(api_->PJRT_Client_TopologyDescription(&topology), "").ok()) return {};
  MILLPOND_PJRT_ARGS(PJRT_TopologyDescription_Attributes, attributes);
  attributes.topology = topology.topology;
  if (!api_.ToStatus(api_->PJRT_TopologyDescription_Attributes(&attributes), "").ok()) return {};
  for (size_t i = 0; i < attributes.num_attributes; ++i) {
    const PJRT_NamedValue& attribute = attributes.attributes[i];
    if (attribute.type == PJRT_NamedValue_kString &&
        std::string_view(attribute.name, attribute.name_size) == kTargetConfig) {
      return std::string(attribute.string_value, attribute.value_size);
    }
  }
  return {};
}

bool Client::IsOfCpus() const {
  if (!MILLPOND_PJRT_HAS(api_, PJRT_Client_PlatformName)) return false;
  MILLPOND_PJRT_ARGS(PJRT_Client_PlatformName, platform);
  platform.client = client_;
  return api_.ToStatus(api_->PJRT_Client_PlatformName(&platform), "").ok() &&
         std::string_view(platform.platform_name, platform.platform_name_size) == "cpu";
}

base::Status Client::Pin(char* data, size_t bytes) const {
  if (!MILLPOND_PJRT_HAS(api_, PJRT_Client_DmaMap) ||
      !MILLPOND_PJRT_HAS(api_, PJRT_Client_DmaUnmap)) {
    return {base::Code::kUnimplemented, description_ + " pins no memory"};
  }
  if (HasOverduePin()) {
    return {base::Code::kUnavailable, "the driver has not ended an earlier pin"};
  }
  MILLPOND_PJRT_ARGS(PJRT_Client_DmaMap, pin);
  pin.client = client_;
  pin.data = data;
  pin.size = bytes;
  return api_.ToStatus(api_->PJRT_Client_DmaMap(&pin), "pinning memory");
}

base::Status Client::Unpin(char* data) const {
  MILLPOND_PJRT_ARGS(PJRT_Client_DmaUnmap, unpin);
  unpin.client = client_;
  unpin.data = data;
  return api_.ToStatus(api_->PJRT_Client_DmaUnmap(&unpin), "unpinning memory");
}

base::StatusOr<int64_t> Client::IdOf(PJRT_Device* device) const {
  const base::StatusOr<PJRT_DeviceDescription*> description = DescriptionOf(device);
  if (!description.ok()) return description.status();
  MILLPOND_PJRT_ARGS(PJRT_DeviceDescription_Id, id);
  id.device_description = description.value();
  MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_DeviceDescription_Id(&id),
                                "asking for a device of " + description_);
  return int64_t{id.id};
}

}  // namespace millpond::pjrt
