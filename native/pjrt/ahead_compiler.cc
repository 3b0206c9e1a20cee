#include "native/pjrt/ahead_compiler.h"

#include <array>
#include <utility>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/compile_options.h"
#include "native/pjrt/executable.h"

namespace millpond::pjrt {
namespace {

constexpr char kWithDevice[] =
    " (leave the topology out, on a machine that has the accelerator, or install a newer plugin)";
constexpr char kWithoutDevice[] = " (name a topology to compile for a device that is not there)";

// Compiles for an accelerator of this machine.
class LocalCompiler final : public AheadCompiler {
 public:
  explicit LocalCompiler(std::shared_ptr<const Accelerator> accelerator)
      : AheadCompiler(accelerator->target(), Result::kAutotuned),
        accelerator_(std::move(accelerator)) {}

 private:
  base::StatusOr<std::string> MakeBytes(std::string_view hlo) const override {
    const auto executable = accelerator_->Compile(hlo);
    if (!executable.ok()) return executable.status();
    return executable.value()->Serialize();
  }

  const std::shared_ptr<const Accelerator> accelerator_;
};

// A device that is described, and need not be there.
class Topology {
 public:
  static base::StatusOr<Topology> Make(const Plugin& plugin, const std::string& description) {
    const Api& api = plugin.api();
    if (!MILLPOND_PJRT_HAS(api, PJRT_TopologyDescription_Create) ||
        !MILLPOND_PJRT_HAS(api, PJRT_TopologyDescription_GetDeviceDescriptions) ||
        !MILLPOND_PJRT_HAS(api, PJRT_Compile)) {
      return base::Status(
          base::Code::kUnimplemented,
          plugin.description() + " cannot compile for a device that is not there" + kWithDevice);
    }
    // One device of one machine. Other plugins than CUDA's may have other options.
    const std::array<PJRT_NamedValue, 2> options = {Text(kTargetConfig, description),
                                                    Text("topology", "1x1x1")};
    MILLPOND_PJRT_ARGS(PJRT_TopologyDescription_Create, create);
    create.topology_name = "";
    create.create_options = options.data();
    create.num_options = options.size();
    const base::Status created =
        api.ToStatus(api->PJRT_TopologyDescription_Create(&create), "describing a device");
    if (created.code() == base::Code::kUnimplemented) {
      return base::Status(created.code(),
                          plugin.description() + ": " + created.message() + kWithDevice);
    }
    if (!created.ok()) return created;
    return Topology(api, create.topology);
  }
  ~Topology() {
    if (topology_ == nullptr) return;
    MILLPOND_PJRT_ARGS(PJRT_TopologyDescription_Destroy, destroy);
    destroy.topology = topology_;
    static_cast<void>(
        api_.ToStatus(api_->PJRT_TopologyDescription_Destroy(&destroy), "freeing a topology"));
  }
  Topology(Topology&& other) noexcept
      : api_(other.api_), topology_(std::exchange(other.topology_, nullptr)) {}
  Topology& operator=(Topology&&) = delete;

  // Returns what sort of device it is, like "NVIDIA H200".
  base::StatusOr<std::string> DeviceKind() const {
    MILLPOND_PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions, devices);
    devices.topology = topology_;
    MILLPOND_RETURN_IF_PJRT_ERROR(api_,
                                  api_->PJRT_TopologyDescription_GetDeviceDescriptions(&devices),
                                  "looking at a described device");
    if (devices.num_descriptions == 0) return base::NotFound("the topology has no device");
    return KindOf(api_, devices.descriptions[0]);
  }

  base::StatusOr<std::string> Compile(const std::string& options, std::string_view hlo) const {
    std::string code(hlo);
    PJRT_Program program = HloProgram(&code);
    MILLPOND_PJRT_ARGS(PJRT_Compile, compile);
    compile.topology = topology_;
    compile.program = &program;
    compile.compile_options = options.data();
    compile.compile_options_size = options.size();
    MILLPOND_RETURN_IF_PJRT_ERROR(api_, api_->PJRT_Compile(&compile),
                                  "compiling for a described device");
    base::StatusOr<std::string> bytes = Serialize(api_, compile.executable);
    Destroy(api_, compile.executable);
    return bytes;
  }

 private:
  Topology(const Api& api, PJRT_TopologyDescription* topology) : api_(api), topology_(topology) {}

  static PJRT_NamedValue Text(std::string_view name, std::string_view text) {
    PJRT_NamedValue value = NamedValue(name);
    value.type = PJRT_NamedValue_kString;
    value.string_value = text.data();
    value.value_size = text.size();
    return value;
  }

  const Api api_;
  PJRT_TopologyDescription* topology_;
};

// Compiles for a device that is described.
class TopologyCompiler final : public AheadCompiler {
 public:
  TopologyCompiler(std::string target, Topology topology, bool for_loads)
      : AheadCompiler(std::move(target), for_loads ? Result::kForLoad : Result::kForTopology),
        options_(for_loads ? WithoutAutotuning(OptionsForAnyDevice()) : OptionsForAnyDevice()),
        topology_(std::move(topology)) {}

 private:
  base::StatusOr<std::string> MakeBytes(std::string_view hlo) const override {
    return topology_.Compile(options_, hlo);
  }

  const std::string options_;
  const Topology topology_;
};

}  // namespace

base::StatusOr<std::shared_ptr<const AheadCompiler>> AheadCompiler::Open(
    const Plugin& plugin, const std::string& topology, float memory_fraction, bool for_loads) {
  if (topology.empty()) {
    AcceleratorOptions options;
    options.memory_fraction = memory_fraction;
    const auto accelerators = Accelerator::MakeAll(plugin, options);
    if (!accelerators.ok()) {
      return base::Status(accelerators.status().code(),
                          accelerators.status().message() + kWithoutDevice);
    }
    return std::shared_ptr<const AheadCompiler>(
        std::make_shared<LocalCompiler>(accelerators.value().front()));
  }
  base::StatusOr<Topology> described = Topology::Make(plugin, topology);
  if (!described.ok()) return described.status();
  const base::StatusOr<std::string> kind = described.value().DeviceKind();
  if (!kind.ok()) return kind.status();
  return std::shared_ptr<const AheadCompiler>(std::make_shared<TopologyCompiler>(
      plugin.build() + ", " + kind.value(), std::move(described.value()), for_loads));
}

base::StatusOr<std::string> AheadCompiler::Compile(std::string_view hlo) const {
  base::StatusOr<std::string> bytes = MakeBytes(hlo);
  if (bytes.ok()) compiled_count_.fetch_add(1, std::memory_order_relaxed);
  return bytes;
}

}  // namespace millpond::pjrt
