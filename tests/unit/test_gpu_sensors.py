"""Tests of the GPU's sensors, on a library that stands for the driver's."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from serving.base.visible_devices import visible_devices
from serving.monitoring import gpu_sensors
from serving.monitoring.gpu_sensors import (
    GpuFigures,
    GpuSensors,
    Nvml,
    open_gpus,
)
from tests.unit.fakes.clocks import FakeClock

NOT_SUPPORTED = 3
UUIDS = (b"GPU-5f00-11", b"GPU-5e00-22")


@dataclass
class FakeNvml:
    """Has two GPUs. `missing` names the functions that the chosen GPU does not support."""

    missing: set[str] = field(default_factory=set)
    chosen: object = None
    energy_millijoules: int = 1_500

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self._code("nvmlInit_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:  # noqa: N802
        self.chosen = handle._obj.value = index.value
        return 0 if index.value < len(UUIDS) else 2

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(UUIDS)
        return self._code("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        assert size.value >= len(text)
        text.value = UUIDS[handle.value or 0]
        return self._code("nvmlDeviceGetUUID")

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        del handle
        self.chosen = uuid
        return 0 if uuid in UUIDS else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, target: Any) -> int:  # noqa: N802
        del handle
        target._obj.gpu = 25
        return self._code("nvmlDeviceGetUtilizationRates")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, target: Any) -> int:  # noqa: N802
        del handle
        target._obj.value = self.energy_millijoules
        return self._code("nvmlDeviceGetTotalEnergyConsumption")

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: ctypes.c_uint, target: Any) -> int:  # noqa: N802
        del handle
        assert sensor.value == 0
        target._obj.value = 61
        return self._code("nvmlDeviceGetTemperature")

    def _code(self, function: str) -> int:
        return NOT_SUPPORTED if function in self.missing else 0


def test_all_sensors_are_read_in_base_units() -> None:
    figures = Nvml(FakeNvml(), "0").read()
    assert figures == GpuFigures(0.25, 1.5, 61)


def test_a_sensor_that_is_missing_is_none() -> None:
    library = FakeNvml(missing={"nvmlDeviceGetTotalEnergyConsumption"})
    assert Nvml(library, "0").read() == GpuFigures(0.25, None, 61)


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["0", "1"]),
        ("", ["0", "1"]),
        ("1,0", ["1", "0"]),
        (" GPU-5f , 0,7", ["GPU-5f", "0"]),
        ("MIG-7/1/0", ["MIG-7/1/0"]),
    ],
)
def test_devices_are_the_visible_gpus_in_order(visible: str | None, devices: list[str]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_devices(2, environment) == devices


def test_a_gpu_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,1")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml())
    with capture_logs() as logs:
        gpus = open_gpus(2)
    assert list(gpus) == ["1"]
    assert [line["device"] for line in logs] == ["0"]


@pytest.mark.parametrize(
    ("device", "chosen"), [("1", 1), (UUIDS[1].decode(), UUIDS[1]), ("GPU-5f", UUIDS[0])]
)
def test_a_gpu_is_found_by_index_or_uuid(device: str, chosen: object) -> None:
    library = FakeNvml()
    Nvml(library, device)
    assert library.chosen == chosen


@pytest.mark.parametrize(
    ("library", "device"),
    [
        (FakeNvml(), "7"),
        (FakeNvml(), "GPU-5"),
        (FakeNvml(), "GPU-7"),
        (FakeNvml(missing={"nvmlInit_v2"}), "0"),
    ],
)
def test_a_gpu_that_is_not_there_raises(library: FakeNvml, device: str) -> None:
    with pytest.raises(OSError, match="failed with NVML's error"):
        Nvml(library, device)


def test_a_machine_without_the_driver_has_no_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sensors, "_LIBRARY", "libno-such-driver.so.1")
    with capture_logs() as logs:
        assert open_gpus(1) == {}
    assert [line["event"] for line in logs] == ["gpu_sensors_missing"]


def test_a_foreign_library_has_no_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sensors, "_LIBRARY", "libc.so.6")
    with capture_logs() as logs:
        assert open_gpus(1) == {}
    assert "nvmlInit_v2" in logs[0]["reason"]


def test_the_figures_are_those_of_the_last_look() -> None:
    library = FakeNvml()
    sensors = GpuSensors({"1": Nvml(library, "0")}, FakeClock())
    assert sensors.figures == {}
    sensors.look_now()
    library.energy_millijoules = 2_500
    assert sensors.figures["1"].energy_joules == pytest.approx(1.5)
    sensors.look_now()
    assert sensors.figures["1"].energy_joules == pytest.approx(2.5)


def test_the_thread_looks_at_its_start_and_ends() -> None:
    sensors = GpuSensors({"0": Nvml(FakeNvml(), "0")}, FakeClock())
    sensors.start()
    assert sensors.stop(timeout_seconds=10)
    assert sensors.figures["0"].temperature_celsius == 61
