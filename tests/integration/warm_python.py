"""Runs programs in processes of their own that begin with TensorFlow imported: the import takes 4 s.

A program runs in a fork of a process that has imported a package and done nothing else.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

_REPOSITORY = str(Path(__file__).parents[2])


class WarmPython:
    """A process of `python` that has imported `package`, and forks itself for each program, inside `with`."""

    def __init__(self, directory: Path, python: str = sys.executable, package: str = "tensorflow"):
        """The programs' output goes through files in `directory`."""
        self._output, self._errors = directory / "output", directory / "errors"
        self._process = subprocess.Popen(
            [python, "-m", "tests.integration.warm_python", package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_REPOSITORY,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def __enter__(self) -> "WarmPython":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def run(
        self, code: str, directory: Path, environment: Mapping[str, str], timeout_seconds: int
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the code as `python -c` does. A program that outlasts the time ends with SIGALRM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        program = {
            "code": code,
            "directory": str(directory),
            "environment": dict(environment),
            "timeout_seconds": timeout_seconds,
            "output": str(self._output),
            "errors": str(self._errors),
        }
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        output, errors = self._output.read_text(), self._errors.read_text()
        return subprocess.CompletedProcess(code, status, output, errors)


def _become(program: Mapping[str, Any]) -> None:
    """Makes this process one of the program alone, and runs it."""
    signal.alarm(program["timeout_seconds"])
    os.chdir(program["directory"])
    os.environ.clear()
    os.environ.update(program["environment"])
    files = (os.devnull, program["output"], program["errors"])
    for descriptor, path in enumerate(files):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program["code"], "<string>", "exec"), main.__dict__)


def _serve() -> None:
    """Runs the programs that come on standard input, and prints the exit status of each."""
    importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _become(json.loads(line))
            # The interpreter ends as after any program.
            return
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
