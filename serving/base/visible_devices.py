"""The GPUs that CUDA's devices are."""

import os
from collections.abc import Mapping, Sequence


def visible_devices(count: int, environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """The GPUs that CUDA's first `count` devices are, by CUDA_VISIBLE_DEVICES; fewer if it names fewer.

    A number counts GPUs by their place on the bus, as NVML does. CUDA does so only with CUDA_DEVICE_ORDER=PCI_BUS_ID,
    or if all GPUs are equal.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not visible:
        return [str(index) for index in range(count)]
    return [device.strip() for device in visible.split(",")][:count]
