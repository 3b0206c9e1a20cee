"""Runs the examples of README.md and docs/, page by page, against real servers.

The marks of a block are described in tests/documents.py. The blocks of a page run in order in a
directory of their own: paths below /models, /tmp, /data and /etc/millpond lead there, and ports
lead to the page's server. `millpond serve` runs in the background and is stopped at the end,
cleanly. A block of Python has a process of its own, in which TensorFlow and Keras are imported already if it imports
one of them.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

from loadtest.drive.demo_model import DemoModel
from loadtest.drive.shell_server import free_port
from tests.documents import PAGES, Block, blocks_of, commands_of, model_of, python_of
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import REPOSITORY
from tests.integration.kept_exports import kept_demo_model, kept_drop_in_models
from tests.integration.warm_python import WarmPython
from tests.integration.warm_servers import SERVE_COMMAND, WarmProcess

RUNNABLE = [
    page
    for page in PAGES
    if any(
        block.language in ("sh", "python") or block.answer_path
        for block in blocks_of(page)
        if not block.reason_not_run
    )
]
MODELS = {"ctr": 1, "half_plus_two": 123}
# The expected output, in a comment behind a print; several lines are items in order.
PRINTED = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)
NO_TENSORFLOW = "\nimport sys\nassert 'tensorflow' not in sys.modules\n"
IMPORTS_TENSORFLOW = re.compile(r"^import (tensorflow|keras)\b", re.MULTILINE)
# The comment promises that this file works without TensorFlow.
WITHOUT_TENSORFLOW = "clients.md"
# A server of the other pages starts with its modules imported, which takes a fifth of the processor time.
STARTS_AS_SHOWN = ("README.md", "getting-started.md")
SERVE = re.compile(r"\s*millpond serve\b")
TERMINAL_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# Commands that change nothing: they are repeated until the output matches the page.
QUESTIONS = re.compile(r"(millpond status|curl (?!.*-X POST))")
# Several examples of a page import TensorFlow, which takes half a minute on a busy machine.
COMMAND_TIMEOUT_SECONDS = 300
PAGE_TIMEOUT_SECONDS = 1500
# Replaces 500 MB.
TABLE_ROWS = 1000
# A `demo-model` copies the export of the fixture: the version's number makes no difference to a page.
WRAPPER = """#!{python}
import os, shutil, sys
words = sys.argv[1:]
has = lambda name: any(word.split("=")[0] == "--" + name for word in words)
if words[:1] == ["serve"]:
    words += [f"--{{name}}={{value}}" for name, value in {flags!r}.items() if not has(name)]
elif words[:1] == ["demo-model"]:
    command, directory, option, version = words
    assert option == "--version", words
    partial, path = f"{{directory}}/.{{version}}.partial", f"{{directory}}/{{version}}"
    shutil.copytree({ctr!r}, partial)
    os.rename(partial, path)
    print(path)
    sys.exit()
os.execv({millpond!r}, [{millpond!r}, *words])
"""


class World:
    """The place in which the examples of a page run: a directory, two ports and at most one server."""

    def __init__(
        self,
        directory: Path,
        exports: Path,
        warm_python: Callable[[str], WarmPython],
        *,
        starts_as_shown: bool,
    ) -> None:
        self.directory = directory
        self._exports = exports
        self._warm_python = warm_python
        self._starts_as_shown = starts_as_shown
        self._grpc_port, self._http_port = free_port(), free_port()
        self._flags = {
            "host": "127.0.0.1",
            "port": self._grpc_port,
            "rest_api_port": self._http_port,
            "log_format": "human",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._log_path = directory / "server.log"
        # A socket's path has at most 108 characters; pytest's directories can be longer.
        self._run_directory = tempfile.TemporaryDirectory(prefix="millpond-")
        for name in ("bin", "models", "tmp", "data", "etc/millpond"):
            (directory / name).mkdir(parents=True)
        # The names of an example that makes a client and sends no request.
        for name in ("ca.pem", "client.pem", "client.key"):
            (directory / name).touch()
        self._install_wrapper()

    def _install_wrapper(self) -> None:
        binaries = Path(sys.executable).parent
        wrapper = self.directory / "bin" / "millpond"
        wrapper.write_text(
            WRAPPER.format(
                python=sys.executable,
                flags=self._flags,
                ctr=str(self._exports / "ctr" / "1"),
                millpond=str(binaries / "millpond"),
            )
        )
        wrapper.chmod(0o755)
        self._environment = {
            "PATH": f"{wrapper.parent}:{binaries}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "PYTHONPATH": REPOSITORY,
            "MILLPOND_RUN_DIRECTORY": self._run_directory.name,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def here(self, text: str) -> str:
        """Returns the text of an example with the paths and ports of this sandbox."""
        text = re.sub(
            r"(?<![\w/.:-])/(models|tmp|data|etc/millpond)\b",
            lambda found: f"{self.directory}/{found[1]}",
            text,
        )
        return re.sub(r"\b8(5|6)00\b", str(self._grpc_port), text).replace(
            "8501", str(self._http_port)
        )

    def run_shell(self, text: str) -> str:
        """Runs a block's commands and returns their output."""
        printed = []
        script: list[str] = []
        for command in commands_of(text):
            if SERVE.match(command):
                printed.append(self._bash("\n".join(script)))
                script = []
                self.serve(shlex.split(self.here(command), comments=True)[2:])
            else:
                script.append(command)
        printed.append(self._bash("\n".join(script)))
        return "".join(printed)

    def _bash(self, script: str) -> str:
        return self._run(["bash", "-euo", "pipefail", "-c", self.here(script)])

    def run_python(self, text: str, python: str = sys.executable) -> str:
        code = self.here(text)
        if not IMPORTS_TENSORFLOW.search(code):
            return self._run([python, "-c", code])
        result = self._warm_python(python).run(
            code, self.directory, self._environment, COMMAND_TIMEOUT_SECONDS
        )
        return output_of(result, code)

    def _run(self, command: list[str]) -> str:
        result = subprocess.run(
            command,
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_SECONDS,
        )
        return output_of(result, command[-1])

    def serve(self, arguments: list[str]) -> None:
        """Starts a server in place of the running one and waits until it is ready."""
        self.stop()
        start = self._start_as_shown if self._starts_as_shown else self._start_warm
        with self._log_path.open("ab") as log:
            self._server = start(arguments, log)
        wait_until(self._is_ready, "the page's server is ready")

    def _start_as_shown(self, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(self.directory / "bin" / "millpond"), "serve", *arguments],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )

    def _start_warm(self, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Starts what the command line would start, with its modules imported (`warm_servers.py`)."""
        given = {word.split("=")[0] for word in arguments}
        more = [
            f"--{name}={value}" for name, value in self._flags.items() if f"--{name}" not in given
        ]
        own = ("PATH", "HOME", "MILLPOND_RUN_DIRECTORY")
        return WarmProcess(
            [*SERVE_COMMAND, *arguments, *more],
            cwd=self.directory,
            env={**os.environ, **{name: self._environment[name] for name in own}},
            stdin=subprocess.DEVNULL,
            stderr=log,
        )

    def _is_ready(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self._log_path.read_text()[-4000:]
        try:
            self.answer("/readyz")
        except OSError:
            return False
        return True

    def answer(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self._http_port}{path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
        return content

    def server_log(self) -> str:
        """Returns the log of the page's servers, as a terminal shows it."""
        return TERMINAL_COLOUR.sub("", self._log_path.read_text())

    def stop(self) -> None:
        """Ends the server. Fails if it does not end cleanly."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.send_signal(signal.SIGTERM)
        try:
            assert server.wait(TIMEOUT_SECONDS) == 0, self._log_path.read_text()[-4000:]
        finally:
            server.kill()
            server.wait()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._run_directory.cleanup()

    def serve_model(self, name: str) -> None:
        """Serves a model of `exports`."""
        base_path = self.directory / "models" / name
        shutil.copytree(self._exports / name, base_path)
        self.serve([f"--model_name={name}", f"--model_base_path={base_path}"])


def output_of(result: "subprocess.CompletedProcess[str]", script: str) -> str:
    assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def warm_python(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], WarmPython]]:
    """Returns the process that has imported TensorFlow for an interpreter, and Keras for that of the server."""
    with contextlib.ExitStack() as stack:
        yield cache(
            lambda python: stack.enter_context(
                # A page of another environment chooses what Keras runs on before it imports it.
                WarmPython(
                    tmp_path_factory.mktemp("programs"),
                    python,
                    "keras" if python == sys.executable else "tensorflow",
                )
            )
        )


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the drop-in tests, and `ctr`, in one folder."""
    directory = tmp_path_factory.mktemp("exports")
    for model in kept_drop_in_models().iterdir():
        (directory / model.name).symlink_to(model)
    ctr = DemoModel.below(kept_demo_model(TABLE_ROWS), TABLE_ROWS).base_path
    (directory / "ctr").symlink_to(ctr)
    return directory


@pytest.fixture
def world(
    page: Path, tmp_path: Path, exports: Path, warm_python: Callable[[str], WarmPython]
) -> Iterator[World]:
    made = World(
        tmp_path / "world", exports, warm_python, starts_as_shown=page.name in STARTS_AS_SHOWN
    )
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(PAGE_TIMEOUT_SECONDS)
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_examples_of_page_run_as_shown(page: Path, world: World):
    if model := model_of(page):
        assert model in MODELS
        world.serve_model(model)
    asked: Block | None = None
    printed = ""
    for block in blocks_of(page):
        if block.reason_not_run:
            asked = None
        elif block.file:
            path = Path(world.here(block.file))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(world.here(block.text))
        elif block.is_output:
            assert asked is not None, f"{block.name}: shows the output of no block"
            check_output(block, asked, printed, world)
        elif block.answer_path:
            check_answer(block, world)
        elif block.language == "sh":
            asked, printed = block, world.run_shell(block.text)
        elif block.language == "python":
            asked, printed = block, run_python(block, world)


def run_python(block: Block, world: World) -> str:
    code = block.text + (NO_TENSORFLOW if block.page.name == WITHOUT_TENSORFLOW else "")
    environment = python_of(block.page)
    python = f"{REPOSITORY}/build/{environment}/bin/python" if environment else sys.executable
    assert Path(python).exists(), f"make build/{environment}/.installed"
    printed = world.run_python(code, python)
    shown = [
        line
        for text in PRINTED.findall(block.text)
        for line in re.split(r"(?<=\]), (?=\[)", text)
        if not line.startswith("not shown")
    ]
    for line in shown:
        assert any(matches(line, other) for other in printed.splitlines()), f"{line}\n{printed}"
    return printed


def check_output(block: Block, asked: Block, printed: str, world: World) -> None:
    """Compares the output on a page with the real output; repeats a read-only command until both
    agree. The output of a server is its log.
    """
    commands = commands_of(asked.text) if asked.language == "sh" else []
    is_server = any(SERVE.match(command) for command in commands)
    is_question = bool(commands) and all(QUESTIONS.match(command) for command in commands)
    shown = world.here(block.text.rstrip("\n"))
    last = world.server_log() if is_server else printed

    def agrees() -> bool:
        nonlocal last
        if matches(shown, last):
            return True
        last = world.server_log() if is_server else world.run_shell(asked.text)
        return False

    if is_question or is_server:
        with contextlib.suppress(AssertionError):
            wait_until(agrees, block.name)
    assert matches(shown, last), f"{block.name}:\n{shown}\n--- printed:\n{last}"


def matches(shown: str, printed: str) -> bool:
    """Returns True if both texts match; `…` stands for any text, and a run of blanks for any other."""
    here = world_free(shown)
    pattern = re.escape(here).replace(re.escape("…"), ".*")
    return re.fullmatch(pattern, world_free(printed), re.DOTALL) is not None


def world_free(text: str) -> str:
    """Returns the text without the parts that differ between runs: paths of the sandbox, and widths
    of columns.
    """
    text = re.sub(r"/\S*/world/(?=models|tmp|data|etc)", "/", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def check_answer(block: Block, world: World) -> None:
    """Checks that each key on the page is in the server's answer."""
    shown = json.loads(block.text)
    last: Any = None

    def has_keys() -> bool:
        nonlocal last
        try:
            last = json.loads(world.answer(block.answer_path))
        except urllib.error.HTTPError as error:
            last = json.loads(error.read())
        return not missing_keys(shown, last)

    wait_until(has_keys, f"{block.name} has the keys of {block.answer_path}")
    assert missing_keys(shown, last) == []


def missing_keys(shown: Any, actual: Any, path: str = "") -> list[str]:
    """Returns the keys of `shown` that `actual` lacks; `…` is not a key.

    A list counts with its first items.
    """
    if isinstance(shown, list) and shown:
        return missing_keys(shown[0], actual[0] if actual else {}, f"{path}[0]")
    if not isinstance(shown, Mapping):
        return []
    if not isinstance(actual, Mapping):
        return [path]
    missing = []
    for key, value in shown.items():
        if key == "…":
            continue
        missing += (
            missing_keys(value, actual[key], f"{path}.{key}")
            if key in actual
            else [f"{path}.{key}"]
        )
    return missing
