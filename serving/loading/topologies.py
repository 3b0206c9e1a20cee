"""Descriptions of GPUs, by which programs are compiled on a machine that has none.

Each is a `stream_executor.GpuTargetConfigProto` of XLA as text, with the fields that all plugins of the extra
`cuda13` know. The figures are those of the makers' data sheets and of XLA's own descriptions:
https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs. The name must be the one that
CUDA gives the device, because a server loads programs for its own name only.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from serving.base.bounded_files import SETTINGS_BYTES_MAX, read_bounded_text
from serving.base.errors import InvalidConfig

_HOPPER = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  memory_bandwidth: {memory_bytes_per_second}
  device_memory_size: {memory_bytes}
  pcie_bandwidth: 34359738368
  device_address_bits: 64
  ecc_enabled: true
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0a"
  name: "{name}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.12.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "{name}"
"""

TOPOLOGIES: Mapping[str, str] = MappingProxyType(
    {
        "h100": _HOPPER.format(
            name="NVIDIA H100 80GB HBM3",
            memory_bytes=84_942_979_072,
            memory_bytes_per_second=3_352_320_000_000,
        ),
        "h200": _HOPPER.format(
            name="NVIDIA H200",
            memory_bytes=151_397_597_184,
            memory_bytes_per_second=4_800_000_000_000,
        ),
    }
)
"""The descriptions of the GPUs that have a name here."""


def topology_description(name: str) -> str:
    """The description of a GPU: one of `TOPOLOGIES`, or the text of a file. Raises InvalidConfig for neither."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    try:
        return read_bounded_text(Path(name), SETTINGS_BYTES_MAX)
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"--topology={name} is none of {', '.join(TOPOLOGIES)}, and no file that can be read: {error}; "
            "give the path of a GpuTargetConfigProto as text"
        ) from error
