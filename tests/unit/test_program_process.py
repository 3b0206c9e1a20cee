"""The process that compiles for a server: what it gets and does, and its end."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from serving.loading import program_process
from serving.loading.child_process import ChildProcess
from serving.loading.program_files import program_file, read_programs
from serving.loading.program_process import (
    UNABLE,
    Arguments,
    raise_if_starving,
    spawn_programs,
)
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane

ARGUMENTS = Arguments("/p.so", "/cache", memory_share=0.05)
PROGRAMS = [b"first", b"second"]


def test_programs_cross_to_another_process():
    programs = [b"", b"first", bytes(100_000)]
    with program_file(programs) as descriptor:
        assert list(read_programs(os.dup(descriptor))) == programs


def test_arguments_cross_to_another_process():
    odd = ARGUMENTS._replace(
        cache_directory=os.fsdecode(b"/caf\xe9"), topology='name: "GPU"\n', cores=[6, 7]
    )
    assert Arguments.of(odd.text()) == odd


@pytest.fixture(autouse=True)
def plane(monkeypatch: pytest.MonkeyPatch) -> FakePlane:
    plane = FakePlane()
    monkeypatch.setattr(program_process, "native_module", lambda: plane)
    monkeypatch.setattr(program_process, "_give_way", lambda *_: None)
    monkeypatch.setattr(program_process, "stop_at_eof", lambda descriptor, stop: None)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    return plane


def compiled(arguments: Arguments, programs: Sequence[bytes] = PROGRAMS) -> tuple[int, int]:
    """Runs the process's work here; returns its status, and how many programs it has begun."""
    with program_file(programs) as file, os.fdopen(os.memfd_create("begun"), "rb") as begun:
        arguments = arguments._replace(programs=os.dup(file), begun=begun.fileno())
        status = program_process.main([arguments.text()])
        return status, os.fstat(begun.fileno()).st_size


def test_program_process_compiles_all_programs(tmp_path: Path):
    assert compiled(ARGUMENTS._replace(cache_directory=str(tmp_path))) == (0, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_program_that_fails_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ARGUMENTS._replace(cache_directory=str(tmp_path))
    assert compiled(arguments, [b"no/where", b"second"]) == (1, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["second"]
    assert "no/where" in capsys.readouterr().err


def test_a_compiler_of_another_target_compiles_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ARGUMENTS._replace(cache_directory=str(tmp_path), topology="a fake")
    assert compiled(arguments._replace(target="another")) == (UNABLE, 0)
    assert "not for another" in capsys.readouterr().err
    assert compiled(arguments._replace(target="/p.so, a fake, for loads")) == (0, 2)


def spawned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> tuple[ChildProcess, int]:
    """Starts `script` as the module, and returns the process and its standard error."""
    (tmp_path / "fake_programs.py").write_text(script)
    monkeypatch.setattr(program_process, "_MODULE", "fake_programs")
    monkeypatch.syspath_prepend(tmp_path)
    stderr = os.memfd_create("stderr")
    arguments = ARGUMENTS._replace(visible_devices="0")
    child = spawn_programs(arguments, PROGRAMS, stderr)
    assert isinstance(child, ChildProcess)
    return child, stderr


def test_program_process_gets_its_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = (
        "import os, sys\n"
        "from serving.loading.program_files import read_programs\n"
        "from serving.loading.program_process import Arguments\n"
        "arguments = Arguments.of(sys.argv[1])\n"
        "print(arguments.memory_share, os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "print(list(read_programs(arguments.programs)))\n"
    )
    child, stderr = spawned(monkeypatch, tmp_path, script)
    assert child.wait(30) == 0
    with os.fdopen(stderr, "rb") as said:
        said.seek(0)
        assert said.read().decode() == "0.05 0\n[b'first', b'second']\n"


def test_program_process_gives_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = (
        "import os\n"
        "from serving.loading.program_process import _give_way\n"
        "core = min(os.sched_getaffinity(0))\n"
        "_give_way('idle', [core])\n"
        "print(os.sched_getaffinity(0) == {core})\n"
        "_give_way('idle', [])\n"
        "print(os.sched_getaffinity(0) == {core})\n"
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.getpgid(0) == os.getpid())\n"
        "print(os.getsid(0) == os.getpid(), open('/proc/self/oom_score_adj').read().strip())\n"
    )
    child, stderr = spawned(monkeypatch, tmp_path, script)
    assert child.wait(30) == 0
    with os.fdopen(stderr, "rb") as said:
        said.seek(0)
        assert said.read().decode() == "True\nTrue\nTrue True\nFalse 1000\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_that_cannot_rise_is_not_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = (
        "import os\n"
        "from serving.loading.program_process import _give_way\n"
        "os.setuid(65534)\n"
        "_give_way('idle', [])\n"
        "print(os.sched_getscheduler(0) == os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))\n"
    )
    child, stderr = spawned(monkeypatch, tmp_path, script)
    assert child.wait(30) == 0
    with os.fdopen(stderr, "rb") as said:
        said.seek(0)
        assert said.read().decode() == "True 10\n"


def test_program_process_ends_with_its_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = (
        "import os, threading\n"
        "from functools import partial\n"
        "from serving.base.parent_process import stop_at_eof\n"
        "stop_at_eof(0, partial(os._exit, 3))\n"
        "threading.Event().wait()\n"
    )
    child, stderr = spawned(monkeypatch, tmp_path, script)
    os.close(stderr)
    assert child._process.stdin is not None
    child._process.stdin.close()  # as the kernel does if the server is gone
    assert child.wait(30) == 3


def test_program_process_can_be_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    child, stderr = spawned(monkeypatch, tmp_path, "import threading; threading.Event().wait()")
    os.close(stderr)
    assert child.wait(0) is None
    child.kill()
    assert child.wait(30) == -9
    child.kill()


class CallingClock(FakeClock):
    """Calls a function in each wait, which then is over."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        self._on_wait()
        return False


def test_a_process_that_starves_is_raised(monkeypatch: pytest.MonkeyPatch):
    seconds, raised = iter([0.0, 4.0, 4.0, 7.9]), []
    monkeypatch.setattr(program_process, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(os, "sched_setscheduler", lambda *of: raised.append(of))
    waits: list[int] = []
    raise_if_starving(CallingClock(lambda: waits.append(1)))
    assert len(waits) == 2, "a fifth of a core is enough"
    assert (os.getpid(), os.SCHED_OTHER) in [of[:2] for of in raised]
