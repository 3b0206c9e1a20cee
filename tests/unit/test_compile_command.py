"""`millpond compile`: its arguments, the directories that it takes, and its lines."""

import os
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig, NotFound
from serving.commands import compile_ahead
from serving.commands.cli import main
from serving.commands.compile_ahead import line_of, version_directory
from serving.data_plane.servables import AcceleratedSignature
from serving.loading.topologies import TOPOLOGIES, topology_description
from tests.unit.fakes.data_plane import FakeAheadCompiler, FakePlane
from tests.unit.fakes.errors import StatusError


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> FakePlane:
    """The data plane of the commands of a test."""
    plane = FakePlane()
    monkeypatch.setattr(compile_ahead, "native_module", lambda: plane)
    return plane


def make_graph(directory: Path, name: str = "saved_model.pb") -> Path:
    directory.mkdir(parents=True)
    (directory / name).touch()
    return directory


@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_directory_with_a_graph_is_compiled(tmp_path: Path, name: str):
    graph = make_graph(tmp_path / "model", name)
    assert version_directory(graph) == graph


def test_highest_version_of_a_base_path_is_compiled(tmp_path: Path):
    make_graph(tmp_path / "9")
    highest = make_graph(tmp_path / "10")
    make_graph(tmp_path / "notes")
    (tmp_path / "11").mkdir()
    assert version_directory(tmp_path) == highest


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_directory_without_a_graph_is_not_found(tmp_path: Path, name: str):
    with pytest.raises(NotFound, match="has no saved_model"):
        version_directory(tmp_path / name)


def signature(*rows: int, **fields: str | tuple[str, ...]) -> AcceleratedSignature:
    values = {"reason": "", "host_ops": (), "host_tables": (), **fields}
    return AcceleratedSignature(name="s", rows=rows, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("compiled", "line"),
    [
        (signature(1, 8), "s: whole: 1, 8 rows"),
        (signature(8, host_ops=("ParseExample",)), "s: split: 8 rows; on the CPU: ParseExample"),
        (signature(8, host_tables=("table",)), "s: split: 8 rows; on the CPU: table"),
        (signature(reason="too few flops"), "s: CPU: too few flops"),
    ],
)
def test_line_says_where_a_signature_runs(compiled: AcceleratedSignature, line: str):
    assert line_of(compiled) == line


@pytest.mark.parametrize("flags", [(), ("--cache=/c",), ("--accelerator=cuda",)])
def test_compilation_needs_accelerator_and_cache(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    assert main(["compile", "/m", *flags]) == 2
    assert "needs --accelerator and --cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--rows=0", "must be at most 32 numbers of rows"),
        ("--accelerator=gpu", "must be cuda or pjrt:PLUGIN.so"),
    ],
)
def test_wrong_value_is_wrong_usage(flag: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", "/m", "--dry-run", flag]) == 2
    assert message in capsys.readouterr().err


def test_topology_is_a_name_or_a_file(tmp_path: Path):
    assert topology_description("h100") == TOPOLOGIES["h100"]
    described = tmp_path / "gpu.txtpb"
    described.write_text("gpu_device_info {}")
    assert topology_description(str(described)) == "gpu_device_info {}"
    with pytest.raises(InvalidConfig, match="none of h100, h200"):
        topology_description(str(tmp_path / "nowhere"))


def test_compilation_takes_the_settings_of_a_server(tmp_path: Path, plane: FakePlane):
    plane.accelerated = [signature(1, 8)]
    graph, cache = make_graph(tmp_path / "1"), str(tmp_path / "cache")
    flags = ("--accelerator=pjrt:/p.so", "--topology=h200", "--rows=8,1", "--tables=host")
    assert main(["compile", str(graph), f"--cache={cache}", *flags]) == 0
    compiler = FakeAheadCompiler(f"/p.so, {TOPOLOGIES['h200']}")
    assert plane.ahead == [(compiler, (1, 8), cache, "host", True)]
    assert plane.loads[0].is_discarded


def test_look_opens_no_plugin(tmp_path: Path, plane: FakePlane, capsys: pytest.CaptureFixture[str]):
    plane.accelerated = [signature(1), signature(8, host_ops=("Op",)), signature(reason="why")]
    first, second = make_graph(tmp_path / "1"), make_graph(tmp_path / "2")
    assert main(["compile", str(first), str(second), "--dry-run"]) == 0
    assert [compiler for compiler, *_ in plane.ahead] == [None, None]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "6 signatures: 2 whole, 2 split, 2 CPU"


@pytest.mark.parametrize(("rows", "status"), [((), 1), ((1,), 0)])
def test_platform_pjrt_needs_one_program(
    tmp_path: Path, plane: FakePlane, rows: tuple[int, ...], status: int
):
    plane.accelerated = [signature(reason="why"), signature(*rows)]
    graph = make_graph(tmp_path / "1")
    assert main(["compile", str(graph), "--dry-run", "--platform=pjrt"]) == status
    assert plane.ahead[0][-1] is False


def test_directory_that_fails_does_not_stop_others(
    tmp_path: Path, plane: FakePlane, capsys: pytest.CaptureFixture[str]
):
    plane.accelerated = [signature(1)]
    graph = make_graph(tmp_path / "1")
    assert main(["compile", str(tmp_path / "nowhere"), str(graph), "--dry-run"]) == 1
    assert "s: whole: 1 rows" in capsys.readouterr().out


def test_missing_op_is_named(tmp_path: Path, plane: FakePlane, capsys: pytest.CaptureFixture[str]):
    plane.missing_ops = ["NoSuchOp"]
    assert main(["compile", str(make_graph(tmp_path / "1")), "--dry-run"]) == 1
    assert "NoSuchOp" in capsys.readouterr().out
    assert plane.ahead == []


@pytest.mark.parametrize(("code", "status"), [(12, 0), (15, 1)])
def test_version_that_may_write_stays_on_the_cpu(
    tmp_path: Path,
    plane: FakePlane,
    capsys: pytest.CaptureFixture[str],
    code: int,
    status: int,
):
    plane.failures["compile_ahead"] = StatusError(code, "it fails")
    assert main(["compile", str(make_graph(tmp_path / "1")), "--dry-run"]) == status
    assert ("serving_default: CPU: it fails" in capsys.readouterr().out) is (status == 0)


def test_cache_that_cannot_be_written_is_refused(
    tmp_path: Path,
    plane: FakePlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    graph = make_graph(tmp_path / "1")
    assert main(["compile", str(graph), f"--cache={tmp_path}", "--accelerator=pjrt:/p.so"]) != 0
    assert f"--cache={tmp_path} cannot be written; run `chmod" in capsys.readouterr().err
    assert plane.ahead == []


def test_file_that_cannot_be_kept_is_an_error(
    tmp_path: Path, plane: FakePlane, capsys: pytest.CaptureFixture[str]
):
    plane.failures["compile_ahead"] = StatusError(9, "/c/1.pjrt cannot be written: no space")
    graph = make_graph(tmp_path / "1")
    assert main(["compile", str(graph), f"--cache={tmp_path}", "--accelerator=pjrt:/p.so"]) == 1
    assert "/c/1.pjrt cannot be written: no space" in capsys.readouterr().out


def test_directory_that_may_not_be_read_is_named(
    tmp_path: Path,
    plane: FakePlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    plane.accelerated = [signature(1)]
    graph = make_graph(tmp_path / "1")
    locked = tmp_path / "locked"
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    assert main(["compile", str(locked), str(graph), "--dry-run"]) == 1
    said = capsys.readouterr().out
    assert "Permission denied" in said
    assert "s: whole: 1 rows" in said
