"""The command `gpu` on the PJRT plugin that XLA's authors have on PyPI, with small models."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.commands import gpu
from loadtest.drive.ctr_deltas import prepare_deltas
from loadtest.drive.demo_model import prepare_model
from loadtest.measure import (
    accelerator_parts,
    accelerator_swaps,
    closed_rates,
    saturation,
    scenario,
)
from loadtest.measure.accelerator_parts import DIFFERENCE_MAX
from tests.integration.accelerators import plugin_path
from tests.integration.kept_exports import kept_export, kept_programs

# One test starts a dozen servers one after another.
pytestmark = [
    pytest.mark.usefixtures("warm_load_tests", "patient_load_tests"),
    pytest.mark.timeout(1500),
]

PARTS = (
    *("equality", "alone", "rates", "host_rates", "swap", "tail", "rollback", "neighbours"),
    *("dense", "many", "zipf"),
)
SIZES = (
    *("--accelerator-rows=1,8", "--table-rows=500", "--dense-parameters=50000", "--rows=1,9"),
    "--rate-rows=1,9",
    *("--tail-rate=100",),
    *(
        "--dense-rows=8",
        "--swap-rows=3",
        "--swaps=1",
        "--many-swaps=11",
        "--many-rate=100",
        "--generators=1",
    ),
    *("--zipf-models=8", "--zipf-parameters=50000", "--zipf-rate=20", "--zipf-seconds=6"),
)
# A table of a delta has 1 MiB or more.
DELTA_TABLE_ROWS = 17_000
MODEL_SOURCES = ("serving/commands", "loadtest/commands/gpu.py", "loadtest/drive", "warmup")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens pauses and loads that full machines bear, and leaves this process on all of its cores."""
    monkeypatch.setattr(scenario, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(scenario, "_STEADY_SECONDS_MIN", 1)
    # The load lasts as long as any swap takes on any machine.
    monkeypatch.setattr(scenario, "_PLANNED_SWAP_SECONDS", 300)
    monkeypatch.setattr(accelerator_swaps, "_PLANNED_SWAP_SECONDS", 100)
    monkeypatch.setattr(saturation, "_RUN_SECONDS", 0.3)
    monkeypatch.setattr(closed_rates, "_WARM_UP_SECONDS", 0.02)
    # A request to the plugin takes milliseconds of a core, and no figure below depends on their number.
    monkeypatch.setattr(saturation, "_PROBE_REQUEST_COUNT", 200)
    monkeypatch.setattr(accelerator_parts, "_ALONE_REQUEST_COUNT", 50)
    monkeypatch.setattr(accelerator_swaps, "_ROLLBACK_COUNT", 5)
    monkeypatch.setattr(accelerator_swaps, "_SWAP_INTERVAL_SECONDS", 1)
    monkeypatch.setattr(accelerator_swaps, "_SHARE", 0.03)
    monkeypatch.setattr(accelerator_swaps, "_BUSY_FACTOR", 0.1)
    monkeypatch.setattr(gpu, "keep_to_client_cores", lambda cores: None)


def accelerator() -> Sequence[str]:
    """The plugin, and the programs that earlier runs compiled for it. What is missing has a core at once."""
    return (
        f"--accelerator=pjrt:{plugin_path()}",
        f"--accelerator-cache={kept_programs('gpu')}",
        "--server-flag=--load_priority=normal",
    )


def make_models(directory: Path) -> None:
    assert main(["gpu", "--parts=none", "--lean", *SIZES, f"--models={directory}"]) == 0


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the models that the command makes, without their weights: a run computes those."""
    kept = kept_export("gpu", make_models, MODEL_SOURCES, stamp=" ".join(SIZES))
    return Path(shutil.copytree(kept, tmp_path / "models"))


def make_delta_models(directory: Path) -> None:
    for prepare in (prepare_model, prepare_deltas):
        prepare(directory, DELTA_TABLE_ROWS, print)


@pytest.fixture
def delta_models(tmp_path: Path) -> Path:
    """Links to the models of the part `delta`, because a copy would have tables of its own."""
    sources = (*MODEL_SOURCES, "loadtest/plan/ctr_deltas.py", "millpond/delta")
    kept = kept_export("gpu_deltas", make_delta_models, sources, stamp=str(DELTA_TABLE_ROWS))
    return Path(shutil.copytree(kept, tmp_path / "models", copy_function=os.link))


def test_gpu_measures_both_servers_in_all_parts(models: Path, tmp_path: Path):
    path = tmp_path / "report.json"
    status = main(
        [
            *("gpu", *accelerator(), f"--parts={','.join(PARTS)}", *SIZES),
            *("--seconds=0.2", f"--models={models}", f"--json={path}"),
            "--server-flag=--num_load_threads=1",
        ]
    )
    parts: dict[str, Any] = json.loads(path.read_text())["parts"]
    assert {name: part["failed"] for name, part in parts.items() if "failed" in part} == {}
    assert (status, tuple(parts)) == (0, PARTS)
    assert 0 < parts["equality"]["difference_to_reference_max"] < DIFFERENCE_MAX
    for name in ("cpu", "accelerator"):
        assert parts["alone"]["rows"]["9"][name]["p50_ms"] > 0
        assert parts["rates"]["rows"]["9"][name]["rows_per_second"] > 0
        rates = parts["dense"]["models"]["transformer"][name]["rates"]
        assert set(rates) == ({"1", "8"} if name == "cpu" else {"1", "32", "256"})
        assert all(rate["requests_per_second"] > 0 for rate in rates.values())
        assert parts["neighbours"][name]["busy_low"]["busy_answered_per_second"] > 0
        assert parts["swap"][name]["windows_all"]["swap"]["count"] > 0
    assert parts["host_rates"]["rows"]["9"]["rows_per_second"] > 0
    for graphs in ("one", "two"):
        tail = parts["tail"][graphs]
        assert [swap["version"] for swap in tail["each_swap"]] == [2]
        assert [upload["version"] for upload in tail["uploads"]] == [2]
        assert sum(tail["over_time"]["count"]) > 100
        assert (tail["errors"], tail["wrong_answers"]) == (0, 0)
    assert all(ms > 0 for ms in parts["rollback"]["upload_ms"].values())
    assert (parts["many"]["swaps"], parts["many"]["rollbacks"]) == (11, 1)
    assert parts["many"]["removed_in_load"] + parts["many"]["removed_after_load"] == 1
    assert parts["many"]["request_count"] > 0
    zipf = parts["zipf"]
    assert (zipf["errors"], zipf["wrong_answers"]) == (0, 0)
    assert 0 < zipf["found_share"] < 1
    assert zipf["cpu_runs"]["away"] > 0
    assert zipf["uploads"] > 0
    assert all(ms > 0 for ms in zipf["back_ms"])


def test_gpu_swaps_beside_faults_lose_nothing(models: Path, tmp_path: Path):
    path = tmp_path / "report.json"
    sizes = [size for size in SIZES if not size.startswith("--many-swaps")]
    arguments = ("gpu", *accelerator(), "--parts=faults", *sizes)
    options = ("--many-swaps=8", "--faults-rate=20", "--no-hangs", f"--json={path}")
    status = main([*arguments, *options, f"--models={models}"])
    part = json.loads(path.read_text())["parts"]["faults"]
    # A device that is lost, or a server that is killed, costs no request, no wrong answer and no byte.
    assert (part.get("errors"), part.get("wrong_answers")) == (0, 0), part
    assert (status, part["memory_bytes_left"], part["late_count"]) == (0, 0, 0)
    assert part["memory_bytes"] > 0
    assert part["swaps"] >= 8
    faults = ("killed_in_upload", "removed_in_upload", "failed_uploads", "lost_devices")
    assert [part[fault] for fault in (*faults, "hung_devices", "rollbacks")] == [1, 1, 1, 1, 0, 1]
    assert part["request_count"] > 0


def test_gpu_replicas_of_many_generators(models: Path, tmp_path: Path):
    path = tmp_path / "report.json"
    # Together they have more in flight than a model usually may have.
    sizes = [size for size in SIZES if not size.startswith(("--generators", "--rate-rows"))]
    arguments = ("gpu", *accelerator(), "--parts=replicas", *sizes)
    options = ("--rate-rows=9", "--generators=3", "--seconds=0.2", f"--json={path}")
    assert main([*arguments, *options, f"--models={models}"]) == 0
    part = json.loads(path.read_text())["parts"]["replicas"]
    one, many = (part[name]["9"] for name in ("one_device", "all_devices"))
    assert one["in_flight"] == 768
    assert [name for name, runs in one["runs_by_device"].items() if runs] == ["0"]
    assert len(many["runs_by_device"]) > len(one["runs_by_device"])
    assert all(many["runs_by_device"].values())
    assert min(one["rows_per_second"], many["rows_per_second"]) > 0


def test_gpu_measures_deltas_beside_whole_versions(delta_models: Path, tmp_path: Path):
    path = tmp_path / "report.json"
    arguments = ("gpu", *accelerator(), "--parts=delta", *SIZES)
    rows = f"--table-rows={DELTA_TABLE_ROWS}"
    status = main([*arguments, rows, f"--models={delta_models}", f"--json={path}"])
    part = json.loads(path.read_text())["parts"]["delta"]
    assert (status, part["errors"], part["wrong_answers"]) == (0, 0, 0)
    for kind, kept_mb in (("full", 0), ("delta", 25)):
        assert [upload["version"] for upload in part[kind]["uploads"]] == [2]
        assert all(upload["kept_mb"] >= kept_mb for upload in part[kind]["uploads"])
        assert part[kind]["windows_all"]["swap"]["count"] > 0
    assert all(upload["uploaded_mb"] < 3 for upload in part["delta"]["uploads"])


def test_gpu_without_the_plugin_fails_each_part(models: Path, tmp_path: Path):
    path = tmp_path / "report.json"
    arguments = ("gpu", "--accelerator=pjrt:/nowhere/plugin.so", "--parts=equality,rollback")
    status = main([*arguments, *SIZES, f"--models={models}", f"--json={path}"])
    parts = json.loads(path.read_text())["parts"]
    assert status == 1
    for part in parts.values():
        assert "/nowhere/plugin.so" in part["failed"]
