"""Runs the native issue loop (native/load_generator), and a null server that the loop is measured with.

The loop is a separate process, with real-time priority if that is permitted. So pauses of this
interpreter are not measured, and this process is not involved while the loop runs.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, TemporaryFile

from loadtest.plan.plan import Outcome, Plan, read_outcome, write_plan
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import FailedPrecondition, InternalError, Unavailable

_REPOSITORY = Path(__file__).parents[2]

# The loop connects for up to 5 s and then prints a line.
_START_TIMEOUT_SECONDS = 15
# The longest that the issue loop may take to write its outcome after the last request's deadline.
_END_GRACE_SECONDS = 15


def issue_loop_path(repository: Path = _REPOSITORY) -> Path:
    """The path of the issue loop's program. Raises FailedPrecondition if it is not built."""
    path = repository / "build/editable/native/load_generator/issue_loop"
    if not os.access(path, os.X_OK):
        raise FailedPrecondition(f"the load generator is not built ({path}); run `make setup`")
    return path


@dataclass(frozen=True)
class ChannelOptions:
    """The options of the gRPC channels. `root_certificates` is a PEM file; None means no TLS."""

    root_certificates: Path | None = None
    compression: str = "identity"


class Generator:
    """Sends a plan's requests to `target` inside `with`, until `finish` or `stop` returns.

    The loop's process never outlives this one: its standard input is a pipe from here.
    Not safe to use from several threads at once.
    """

    def __init__(self, plan: Plan, target: str, channel: ChannelOptions | None = None) -> None:
        self._plan = plan
        self._target = target
        self._channel = channel or ChannelOptions()
        self._cleanup = ExitStack()
        self._outcome_path = Path()
        self._program: _Program | None = None
        self._started_ns = 0

    def __enter__(self) -> "Generator":
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-load-")))
            plan_path, self._outcome_path = directory / "plan", directory / "outcome"
            write_plan(self._plan, plan_path)
            files = (str(plan_path), str(self._outcome_path))
            channel = (str(self._channel.root_certificates or "-"), self._channel.compression)
            program = _Program("run", self._target, *files, *channel)
            self._program = stack.enter_context(program)
            self._started_ns = self._program.read_first_line("started")
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    @property
    def started_ns(self) -> int:
        """The instant at which the plan began, of `Clock.now_ns`."""
        return self._started_ns

    def finish(self) -> Outcome:
        """Waits until the plan's last request is answered.

        Raises Unavailable if the issue loop fails or does not end in time.
        """
        return self._outcome(float(self._plan.offsets_ns[-1:].sum()) / NS_PER_SECOND)

    def stop(self) -> Outcome:
        """Stops issuing requests and waits for the replies in flight. Raises the errors of `finish`."""
        self._running().close_input()
        return self._outcome(0)

    def _outcome(self, left_seconds: float) -> Outcome:
        deadline_seconds = self._plan.deadline_ns / NS_PER_SECOND
        self._running().wait(left_seconds + deadline_seconds + _END_GRACE_SECONDS)
        return read_outcome(self._outcome_path, self._plan)

    def _running(self) -> "_Program":
        if self._program is None:
            raise FailedPrecondition("the Generator is not started: use `with`")
        return self._program


@contextmanager
def null_server(reply: bytes) -> Iterator[str]:
    """Yields the HOST:PORT of a server that answers every call with `reply`.

    With this server a test measures the generator alone.
    """
    with NamedTemporaryFile(prefix="millpond-reply-") as file:
        file.write(reply)
        file.flush()
        with _Program("null", file.name) as program:
            yield f"127.0.0.1:{program.read_first_line('listening')}"


class _Program:
    """Runs the issue loop's program inside `with`; kills it at the end if it still runs."""

    def __init__(self, *arguments: str) -> None:
        with ExitStack() as stack:
            # A file, because a full pipe that is not read would block the generator.
            self._errors = stack.enter_context(TemporaryFile("w+", prefix="millpond-load-"))
            command = [str(issue_loop_path()), *arguments]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
            )
            self._cleanup = stack.pop_all()

    def __enter__(self) -> "_Program":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._cleanup.close()

    def read_first_line(self, what: str) -> int:
        """Reads the first line of the program, "`what` NUMBER", and returns the number.

        Raises Unavailable if the program ends first or prints nothing in time.
        """
        assert self._process.stdout is not None
        # Kills a process that prints nothing, so that the read ends.
        watchdog = threading.Timer(_START_TIMEOUT_SECONDS, self._process.kill)
        watchdog.start()
        try:
            words = self._process.stdout.readline().split()
        finally:
            watchdog.cancel()
        if not words:
            self._process.wait()
            raise Unavailable(self._last_error_line())
        if words[0] != what:
            raise InternalError(f"issue_loop printed {words}, not {what!r}")
        return int(words[1])

    def close_input(self) -> None:
        """Closes the program's standard input, which ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, timeout_seconds: float) -> None:
        """Waits until the program ends. Raises Unavailable at the timeout, or if the program failed."""
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"the issue loop did not end in {timeout_seconds:.0f} s") from None
        if status != 0:
            raise Unavailable(self._last_error_line())

    def _last_error_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"issue_loop ended with status {self._process.returncode}"
