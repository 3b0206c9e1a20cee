"""The sensors of NVIDIA GPUs: how busy, how warm, and their energy.

They are read through NVML, the library of NVIDIA's driver (https://docs.nvidia.com/deploy/nvml-api/), which
each machine with such a GPU has. So it needs no package.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from serving.base.clock import Clock
from serving.base.periodic_thread import PeriodicThread
from serving.base.visible_devices import visible_devices

_log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0
"""The time between two looks. NVML's utilization is a mean over at most a second, and scrapes are rarer."""

_LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_OF_GPU = 0
_JOULES_PER_MILLIJOULE = 1e-3
_PERCENT = 100
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


@dataclass(frozen=True)
class GpuFigures:
    """The figures of one look. A figure that the GPU does not have is None, as energy before Volta."""

    utilization_ratio: float | None = None
    """The share of the time in which a kernel ran, over the last second at most."""

    energy_joules: float | None = None
    """The energy since the driver was loaded."""

    temperature_celsius: int | None = None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """NVML for one GPU. One thread at a time."""

    def __init__(self, library: Any, device: str) -> None:
        """Finds the GPU that `device` names: an index, or a UUID, of which CUDA takes the first part too.

        Raises OSError without it, or if several GPUs' UUIDs begin so.
        """
        self._library = library
        self._handle = ctypes.c_void_p()
        _check("nvmlInit_v2", library.nvmlInit_v2())
        handle = ctypes.byref(self._handle)
        if device.isascii() and device.isdigit():
            found = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device)), handle)
        else:
            found = library.nvmlDeviceGetHandleByUUID(self._whole_uuid(device), handle)
        _check(f"the GPU {device!r}", found)

    def _whole_uuid(self, start: str) -> bytes:
        """The UUID of the only GPU whose UUID begins with `start`, because NVML takes whole ones. Else `start`."""
        prefix = start.encode()
        matching = [uuid for uuid in self._uuids() if uuid.startswith(prefix)]
        return matching[0] if len(matching) == 1 else prefix

    def _uuids(self) -> Iterator[bytes]:
        """The UUIDs of all GPUs that the process may read."""
        library, count = self._library, ctypes.c_uint()
        _check("nvmlDeviceGetCount_v2", library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        for index in range(count.value):
            gpu, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
            # A GPU that this user may not read is no error, unless it is the one that is meant.
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(gpu)) != 0:
                continue
            if library.nvmlDeviceGetUUID(gpu, text, ctypes.c_uint(_UUID_BYTES)) == 0:
                yield text.value

    def read(self) -> GpuFigures:
        """Reads all sensors, which takes about a millisecond."""
        library = self._library
        utilization = self._get(_Utilization(), library.nvmlDeviceGetUtilizationRates)
        energy = self._get(ctypes.c_ulonglong(), library.nvmlDeviceGetTotalEnergyConsumption)
        temperature = self._get(
            ctypes.c_uint(), library.nvmlDeviceGetTemperature, ctypes.c_uint(_TEMPERATURE_OF_GPU)
        )
        return GpuFigures(
            utilization_ratio=None if utilization is None else utilization.gpu / _PERCENT,
            energy_joules=None if energy is None else energy.value * _JOULES_PER_MILLIJOULE,
            temperature_celsius=None if temperature is None else temperature.value,
        )

    def _get(self, target: Any, function: Callable[..., int], *arguments: Any) -> Any:
        """Calls `function`, which fills `target`; None if the GPU does not have the sensor."""
        is_read = function(self._handle, *arguments, ctypes.byref(target)) == 0
        return target if is_read else None


def _check(doing: str, code: int) -> None:
    if code != 0:
        raise OSError(f"{doing} failed with NVML's error {code}")


def open_gpus(device_count: int) -> Mapping[str, Nvml]:
    """Opens NVML for each of the server's devices, by the device's name in the metrics.

    A device that cannot be read is left out, with a line in the log.
    """
    gpus: dict[str, Nvml] = {}
    for name, device in enumerate(visible_devices(device_count)):
        try:
            gpus[str(name)] = Nvml(ctypes.CDLL(_LIBRARY), device)
        except (OSError, AttributeError) as error:
            _log.warning("gpu_sensors_missing", device=str(name), reason=str(error))
    return gpus


class GpuSensors:
    """Keeps the figures of the last look at each device. `figures` may be read on any thread."""

    def __init__(self, gpus: Mapping[str, Nvml], clock: Clock) -> None:
        self._gpus = gpus
        self._figures: Mapping[str, GpuFigures] = {}
        self._thread = PeriodicThread(
            "gpu-sensors",
            self.look_now,
            wait_seconds=PERIOD_SECONDS,
            failure_event="gpu_sensors_failed",
            at_start=self.look_now,
            clock=clock,
        )

    @property
    def figures(self) -> Mapping[str, GpuFigures]:
        """The figures of the last look, by the device's name in the metrics."""
        return self._figures

    def look_now(self) -> None:
        """Reads the sensors once, on the calling thread."""
        self._figures = {name: gpu.read() for name, gpu in self._gpus.items()}

    def start(self) -> None:
        """Starts the thread that reads them."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the thread; returns False if it still runs after the timeout."""
        self._thread.stop()
        return self._thread.join(timeout_seconds)
