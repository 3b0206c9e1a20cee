"""Tests of AcceleratorUse: which versions and signatures run on an accelerator, and what is said of the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import FailedPrecondition, InvalidConfig
from serving.core.cancellation import Cancellation
from serving.core.model_settings import TablePlace
from serving.core.servable import ServableId
from serving.data_plane.servables import AcceleratedSignature
from serving.loading import accelerator_use
from serving.loading.accelerator_use import (
    AcceleratorNeeds,
    AcceleratorUse,
    AppliedPrograms,
    cuda_plugin_path,
    make_cache_directory,
)
from serving.loading.child_process import Child
from serving.loading.compile_runs import CompileRuns
from serving.loading.device_placement import DevicePlacement
from serving.loading.program_process import Arguments
from serving.loading.side_choices import SideChoices
from tests.unit.fakes.children import FakeChild, program_runs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakeAccelerator, FakePlane
from tests.unit.fakes.errors import StatusError

ACCELERATORS = [FakeAccelerator(), FakeAccelerator(name="1")]
USE = AcceleratorUse(
    accelerators=ACCELERATORS,
    placement=DevicePlacement(ACCELERATORS, FakeClock()),
    sides=SideChoices(FakeClock(), StatusError),
    rows=(1, 8),
    cache_directory="",
)
NEEDS = AcceleratorNeeds(
    memory_bytes_max=5_000,
    is_low=False,
    is_needed=False,
    tables=TablePlace.AUTO,
    devices=[1],
    replica_count=1,
)
RUNS = AcceleratedSignature(
    name="serving_default",
    rows=(1, 8),
    reason="",
    host_ops=("LookupTableFindV2",),
    host_tables=("ids",),
)
STAYS = AcceleratedSignature(
    name="parse", rows=(), reason="op ParseExampleV2", host_ops=(), host_tables=()
)
FULL = StatusError(8, "the fake device is full")


def applied(plane: FakePlane, *, is_needed: bool) -> Sequence[Mapping[str, Any]]:
    """Applies USE to a load of `plane`, and returns what was logged."""
    with capture_logs() as logs:
        apply(USE, plane, is_needed=is_needed)
    return logs


def apply(use: AcceleratorUse, plane: FakePlane, *, is_needed: bool = False) -> AppliedPrograms:
    load = plane.SavedModelLoad("m", 7, "/models/m/7", ("serve",))
    servable_id = ServableId("m", 7)
    needs = replace(NEEDS, is_needed=is_needed)
    with use.placed(servable_id, load, needs) as places:
        return use.apply(
            servable_id,
            load,
            places,
            needs,
            status_error=StatusError,
            cancellation=Cancellation(),
        )


class FakeProcess:
    """A compilation whose process compiles the programs of `finished` into the cache of `plane`."""

    def __init__(self, plane: FakePlane, *finished: bytes) -> None:
        self._plane = plane
        self._finished = finished
        self.asked: list[Sequence[bytes]] = []
        arguments = Arguments("/p.so", "/cache", priority="idle")
        self.runs = CompileRuns(arguments, program_runs(self._spawn), SystemClock())

    def _spawn(self, arguments: Arguments, programs: Sequence[bytes], stderr: int) -> Child:
        self.asked.append(programs)
        self._plane.cached_programs.update(self._finished)
        child = FakeChild()
        child.end(0)
        return child


def programmed_plane() -> FakePlane:
    """A plane with three programs for each load, one of which is in the cache."""
    plane = FakePlane()
    plane.accelerated = [replace(RUNS, untuned_rows=(8,))]
    plane.programs = {"a": b"first", "b": b"second", "c": b"third"}
    plane.cached_programs = {b"first"}
    return plane


def test_a_process_compiles_what_the_cache_has_not() -> None:
    plane = programmed_plane()
    process = FakeProcess(plane, b"second")
    use = replace(USE, compilation=process.runs)
    use.begin_serving()
    assert apply(use, plane).figures == {
        "cached_programs": 1,
        "process_programs": 1,
        "server_programs": 1,
        "untuned_programs": 1,
    }
    assert process.asked == [[b"second", b"third"]]


def test_a_start_compiles_in_the_server() -> None:
    plane = programmed_plane()
    process = FakeProcess(plane, b"second", b"third")
    applied = apply(replace(USE, compilation=process.runs), plane)
    assert (applied.cached_count, applied.server_count, process.asked) == (1, 2, [])


def test_a_known_graph_needs_no_process() -> None:
    plane = programmed_plane()
    plane.cached_programs = set(plane.programs.values())
    process = FakeProcess(plane)
    use = replace(USE, compilation=process.runs)
    use.begin_serving()
    assert (apply(use, plane).cached_count, process.asked) == (3, [])


def test_each_signature_says_where_it_runs() -> None:
    plane = FakePlane()
    plane.accelerated = [STAYS, RUNS]
    logs = applied(plane, is_needed=True)
    assert [(line["signature"], line["event"], line.get("reason")) for line in logs] == [
        ("parse", "signature_on_cpu", "op ParseExampleV2"),
        ("serving_default", "signature_on_accelerator", None),
    ]
    assert logs[1]["devices"] == ["1"]
    assert (logs[1]["cpu_ops"], logs[1]["cpu_tables"]) == (["LookupTableFindV2"], ["ids"])


def test_a_version_without_memory_there_waits_for_it() -> None:
    plane = FakePlane()
    plane.accelerated = [replace(RUNS, reason="the parameters take 7 bytes")]
    ran, waits = applied(plane, is_needed=False)
    assert (ran["event"], ran["rows"]) == ("signature_on_accelerator", [1, 8])
    assert (waits["event"], waits["reason"]) == ("accelerator_full", "the parameters take 7 bytes")


def test_a_full_accelerator_leaves_the_cpu() -> None:
    plane = FakePlane()
    plane.failures["use_accelerator"] = FULL
    [line] = applied(plane, is_needed=False)
    assert (line["event"], line["reason"]) == ("signature_on_cpu", "the fake device is full")


def test_a_full_accelerator_that_is_needed_fails() -> None:
    plane = FakePlane()
    plane.failures["use_accelerator"] = FULL
    with pytest.raises(StatusError, match="the fake device is full"):
        applied(plane, is_needed=True)


def test_a_needed_accelerator_must_run_a_signature() -> None:
    plane = FakePlane()
    plane.accelerated = [STAYS]
    with pytest.raises(FailedPrecondition, match=r'parse: op ParseExampleV2.*platform = "auto"'):
        applied(plane, is_needed=True)


def test_a_missing_package_of_cuda_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator_use, "_CUDA_PACKAGE", "no_such_package.xla_cuda")
    with pytest.raises(InvalidConfig, match=r"pip install 'millpond\[cuda13\]'"):
        cuda_plugin_path()


def test_the_plugin_of_cuda_is_found_in_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "a_fake_cuda_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "xla_cuda_plugin.so").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(accelerator_use, "_CUDA_PACKAGE", "a_fake_cuda_package")
    assert cuda_plugin_path() == str(package / "xla_cuda_plugin.so")


def test_a_cache_directory_is_for_the_server_alone(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "programs"
    make_cache_directory(str(directory))
    assert directory.stat().st_mode & 0o777 == 0o700
    make_cache_directory(str(directory))
    for mode in (0o777, 0o770, 0o1777):
        directory.chmod(mode)
        with pytest.raises(InvalidConfig, match="chmod go-w"):
            make_cache_directory(str(directory))


def test_a_cache_directory_in_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").touch()
    (tmp_path / "link").symlink_to(tmp_path / "m" / "1")
    for directory in ("m/1", "m/1/programs", "link/a/programs"):
        with pytest.raises(InvalidConfig, match=r"lies inside the version .*/m/1,"):
            make_cache_directory(str(tmp_path / directory))
    assert [path.name for path in (tmp_path / "m" / "1").iterdir()] == ["saved_model.pb"]
    make_cache_directory(str(tmp_path / "m" / "programs"))


def test_a_cache_directory_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for directory in ("a", "a/programs"):
        with pytest.raises(InvalidConfig, match="cannot be made"):
            make_cache_directory(str(tmp_path / directory))


def test_a_cache_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidConfig, match="cannot be made"):
        make_cache_directory(str(tmp_path / "file"))
