import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from serving.base.errors import FailedPrecondition, InvalidConfig
from serving.base.parent_process import stop_at_eof
from serving.server.launcher import (
    DEFAULT_MALLOC_CONF,
    JEMALLOC_FILE_NAME,
    ensure_allocator,
    find_jemalloc,
    is_jemalloc_loaded,
    preload_early,
    raise_descriptor_limit,
)

JEMALLOC = "/lib/libjemalloc.so.2"


class Executed(Exception):
    """Raised by a fake exec, because the real one does not return either."""

    def __init__(self, path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.path, self.arguments, self.environment = path, arguments, environment


def fake_execute(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    raise Executed(path, arguments, environment)


def launch(
    allocator: str, environment: dict[str, str], *, is_loaded: bool = False
) -> Executed | None:
    """Runs the launcher in `environment`, which it may change; returns the exec, if any."""
    return executed_by(
        ensure_allocator,
        allocator,
        environment=environment,
        command=["python", "-m", "serving", "serve"],
        is_loaded=is_loaded,
    )


def executed_by(start: Callable[..., None], *arguments: Any, **options: Any) -> Executed | None:
    try:
        start(*arguments, **options, find=lambda: JEMALLOC, execute=fake_execute)
    except Executed as executed:
        return executed
    return None


def test_launcher_first_life_preloads_jemalloc():
    executed = launch("jemalloc", {"HOME": "/h"})
    assert executed is not None
    assert executed.path == sys.executable
    assert executed.arguments == [sys.executable, "-m", "serving", "serve"]
    assert executed.environment["LD_PRELOAD"] == JEMALLOC
    assert executed.environment["MALLOC_CONF"] == DEFAULT_MALLOC_CONF
    assert executed.environment["HOME"] == "/h"


@pytest.mark.parametrize("entries", ["/a.so /b.so", "/a.so:/b.so"])
def test_launcher_keeps_preloads_of_user(entries: str):
    executed = launch("jemalloc", {"LD_PRELOAD": entries})
    assert executed is not None
    assert executed.environment["LD_PRELOAD"] == f"{JEMALLOC}:/a.so:/b.so"


def test_launcher_leaves_malloc_conf_of_the_user():
    executed = launch("jemalloc", {"MALLOC_CONF": "narenas:1"})
    assert executed is not None
    assert executed.environment["MALLOC_CONF"] == "narenas:1"


@pytest.mark.parametrize(
    "environment",
    [{}, {"LD_PRELOAD": "/a.so:/b.so"}, {"MALLOC_CONF": "narenas:1"}],
)
def test_launcher_second_life_restores_environment(environment: dict[str, str]):
    executed = launch("jemalloc", dict(environment))
    assert executed is not None
    second_environment = dict(executed.environment)
    assert launch("jemalloc", second_environment, is_loaded=True) is None
    assert second_environment == environment


def test_launcher_second_life_refuses_lacking_jemalloc():
    executed = launch("jemalloc", {})
    assert executed is not None
    with pytest.raises(InvalidConfig, match="did not load"):
        launch("jemalloc", dict(executed.environment))


def test_launcher_keeps_jemalloc_preloaded_by_user():
    environment = {"LD_PRELOAD": JEMALLOC}
    assert launch("jemalloc", environment, is_loaded=True) is None
    assert environment == {"LD_PRELOAD": JEMALLOC}


def test_launcher_glibc_executes_nothing():
    assert launch("glibc", {}) is None


def test_launcher_refuses_glibc_under_jemalloc():
    with pytest.raises(InvalidConfig, match="take it out of LD_PRELOAD"):
        launch("glibc", {"LD_PRELOAD": JEMALLOC}, is_loaded=True)


def launch_early(
    arguments: list[str], environment: dict[str, str] | None = None, *, is_loaded: bool = False
) -> Executed | None:
    """Runs the early preload; returns the exec, if any."""
    return executed_by(
        preload_early,
        arguments,
        environment=environment or {},
        is_loaded=is_loaded,
    )


@pytest.mark.parametrize("flag", ["--port=1", "--allocator=jemalloc", "--model_name=--help"])
def test_early_preload_executes_a_server(flag: str):
    executed = launch_early(["serve", flag])
    assert executed is not None
    assert executed.arguments == [sys.executable, *sys.orig_argv[1:]]
    assert executed.environment["LD_PRELOAD"] == JEMALLOC


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["status"],
        ["status", "serve"],
        ["serve", "--help"],
        ["serve", "-h"],
        ["serve", "--version"],
        ["serve", "--allocator=glibc"],
        ["serve", "--supervise"],
        ["serve", "--allocator", "glibc"],
    ],
)
def test_early_preload_leaves_other_commands(arguments: list[str]):
    assert launch_early(arguments) is None


def test_early_preload_executes_once():
    executed = launch_early(["serve"])
    assert executed is not None
    assert launch_early(["serve"], dict(executed.environment)) is None
    assert launch_early(["serve"], is_loaded=True) is None


def test_early_preload_leaves_missing_jemalloc():
    def find() -> str:
        raise InvalidConfig("missing")

    preload_early(["serve"], environment={}, is_loaded=False, find=find)


def test_find_jemalloc_takes_first_match(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / JEMALLOC_FILE_NAME).touch()
    found = find_jemalloc([str(tmp_path / "a"), str(tmp_path / "b")])
    assert found == str(tmp_path / "b" / JEMALLOC_FILE_NAME)


def test_find_jemalloc_skips_path_with_a_space(tmp_path: Path):
    for name in ("my models", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / JEMALLOC_FILE_NAME).touch()
    found = find_jemalloc([str(tmp_path / "my models"), str(tmp_path / "models")])
    assert found == str(tmp_path / "models" / JEMALLOC_FILE_NAME)


def test_find_jemalloc_prefers_copy_beside_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("module", "usual"):
        (tmp_path / name).mkdir()
        (tmp_path / name / JEMALLOC_FILE_NAME).touch()
    spec = ModuleSpec("_data_plane", None, origin=str(tmp_path / "module" / "_data_plane.so"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr(
        "serving.server.launcher._usual_directories", lambda: [str(tmp_path / "usual")]
    )
    assert find_jemalloc() == str(tmp_path / "module" / JEMALLOC_FILE_NAME)


def test_find_jemalloc_not_installed_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.server.launcher._in_loader_cache", lambda: None)
    with pytest.raises(InvalidConfig, match="apt-get install libjemalloc2"):
        find_jemalloc([])


def test_descriptor_limit_is_raised_to_maximum():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_stop_at_eof_stops_only_on_closed_pipe():
    reading, writing = os.pipe()
    stopped = threading.Event()
    thread = stop_at_eof(reading, stopped.set)
    os.write(writing, b"typed by mistake\n")
    assert not stopped.is_set()
    os.close(writing)
    thread.join(10)
    os.close(reading)
    assert stopped.is_set()


def test_launcher_without_proc_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="mount -t proc"):
        is_jemalloc_loaded(tmp_path / "maps")


def test_launcher_process_hides_jemalloc_from_children():
    try:
        find_jemalloc()
    except InvalidConfig as error:
        pytest.skip(error.message)
    code = (
        "import os\n"
        "from serving.server.launcher import ensure_allocator, is_jemalloc_loaded\n"
        "ensure_allocator('jemalloc')\n"
        "print(is_jemalloc_loaded(), 'LD_PRELOAD' in os.environ, 'MALLOC_CONF' in os.environ)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MALLOC_CONF")}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    assert (result.returncode, result.stdout.strip()) == (0, "True False False"), result.stderr
