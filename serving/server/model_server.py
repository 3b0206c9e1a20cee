"""Runs a server process for notebooks and tests.

with ModelServer(model_name="ctr", base_path="/models/ctr") as server:
    server.wait_until_available("ctr", version=1)
    stub = PredictionServiceStub(grpc.insecure_channel(server.target))
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from serving.base.clock import NS_PER_SECOND, Clock, SystemClock
from serving.base.errors import FailedPrecondition, MillpondError, NotFound, Unavailable
from serving.base.parent_process import STOP_AT_STDIN_EOF
from serving.client import Client, Tls, VersionStatus
from serving.core.servable import ServableState
from serving.core.store_urls import is_store_url
from serving.server.server_log import LogEvent, LogReader

# The pause between two polls of a model's status. A person does not notice it, and the server has little work.
_STATUS_POLL_SECONDS = 0.02
# The longest time between the end of a process's log and the end of the process.
_END_SECONDS = 1.0


class ModelServer:
    """Runs `millpond serve` on a free port of this machine until `stop` or the end of `with`.

    The server never outlives this process, however this process ends, because the server's standard input is
    a pipe from this process, and the server stops when the pipe closes. The server's log goes to `log_path`,
    and the message of each error ends with its last lines. Not safe to use from several threads at once.
    """

    process_type: type[subprocess.Popen[bytes]] = subprocess.Popen
    """Runs the command line; takes the arguments of `Popen`."""

    def __init__(
        self,
        *,
        model_name: str = "default",
        base_path: str | os.PathLike[str] | None = None,
        log_path: str | os.PathLike[str] | None = None,
        start_timeout_seconds: float = 60,
        stop_timeout_seconds: float = 60,
        command: Sequence[str] = (sys.executable, "-m", "serving"),
        environment: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        **flags: object,
    ) -> None:
        """Prepares the command line. Starts nothing yet.

        `flags` are flags of `millpond serve` by name. True and False become `true` and `false`, and a list
        repeats its flag. `listen_before_ready` is True unless it is given, so `start` returns before the
        models are loaded.

        `environment` has variables that are added to this process's environment for the server. `log_path`
        is by default a temporary file, which a `stop` without errors removes. `wait_until_available` needs
        `tls` if the server has an `ssl_config_file`.
        """
        self._command = [*command, "serve", *_arguments(model_name, base_path, flags)]
        self._environment = {**(environment or {}), STOP_AT_STDIN_EOF: "1"}
        self._tls = tls
        self._http_scheme = "https" if flags.get("rest_ssl_config_file") else "http"
        self._clock = clock or SystemClock()
        self._start_timeout_seconds = start_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._log_path = Path(log_path) if log_path is not None else None
        self._is_log_temporary = log_path is None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: LogReader | None = None
        self._port: int | None = None
        self._http_port: int | None = None

    def __enter__(self) -> "ModelServer":
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self.stop()
            return
        # The server is killed, so that no error of its end hides the exception inside `with`.
        self.kill()
        if str(self.log_path) not in str(exception):
            print(f"{exception!r} inside ModelServer; {self._tail()}", file=sys.stderr)

    def start(self) -> None:
        """Starts the process, and waits until it listens.

        Raises Unavailable, with the end of the log, if the process ends or does not listen in time.
        """
        if self._process is not None:
            raise FailedPrecondition("this ModelServer was already started; create another one")
        if self._log_path is None:
            descriptor, name = tempfile.mkstemp(prefix="millpond-", suffix=".log")
            os.close(descriptor)
            self._log_path = Path(name)
        log_file = self._log_path.open("wb")
        self._process = self.process_type(
            self._command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._environment},
        )
        assert self._process.stderr is not None
        self._log = LogReader(self._process.stderr, log_file)
        try:
            listening = self.wait_for_event(
                lambda event: event["event"] == "listening", self._start_timeout_seconds
            )
        except BaseException:
            self.kill()
            raise
        self._port = int(listening["port"])
        self._http_port = listening.get("http_port")

    @property
    def port(self) -> int:
        """The TCP port of the server's gRPC. Raises FailedPrecondition before `start`."""
        if self._port is None:
            raise FailedPrecondition("ModelServer is not started")
        return self._port

    @property
    def target(self) -> str:
        """`HOST:PORT`, for a gRPC channel."""
        return f"127.0.0.1:{self.port}"

    @property
    def admin_target(self) -> str:
        """The address of the server's admin listener, for `Client(server.admin_target).rollback(…)`.

        Raises FailedPrecondition before `start`, and with `admin_address="off"`.
        """
        # The admin listener is logged before the port opens, and again after each restart by a supervisor.
        addresses = [
            event["address"]
            for event in (self.events() if self._port is not None else ())
            if event["event"] == "admin_listening"
        ]
        if not addresses:
            raise FailedPrecondition("ModelServer is not started, or has no admin listener")
        return str(addresses[-1])

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, or `https:`, the address of the server's health, metrics and page.

        Raises FailedPrecondition before `start`, and if the server has no port for HTTP.
        """
        if self._http_port is None:
            raise FailedPrecondition("ModelServer is not started, or has --rest_api_port=0")
        return f"{self._http_scheme}://127.0.0.1:{self._http_port}"

    @property
    def log_path(self) -> Path:
        """The file with the server's log. Raises FailedPrecondition before `start`."""
        if self._log_path is None:
            raise FailedPrecondition("ModelServer is not started")
        return self._log_path

    @property
    def process_id(self) -> int:
        """The operating system's id of the process. Raises FailedPrecondition before `start`."""
        return self._running_process().pid

    @property
    def exit_status(self) -> int | None:
        """The status with which the process has ended; None while it runs. Any thread.

        Raises FailedPrecondition before `start`.
        """
        return self._running_process().poll()

    def events(self) -> tuple[LogEvent, ...]:
        """The events logged until now, oldest first."""
        return self._started_log().events()

    def wait_for_event(
        self, is_wanted: Callable[[LogEvent], bool], timeout_seconds: float
    ) -> LogEvent:
        """Waits for an event of the log for which `is_wanted` returns True, and returns the first one.

        Events from before the call count too. Raises Unavailable, with the end of the log, at the timeout or
        if the process ends first.
        """
        event = self._started_log().wait_for(is_wanted, timeout_seconds, self._clock)
        if event is None:
            reason = f"did not log the expected event in {timeout_seconds} s"
            if self._wait_for_end(_END_SECONDS):
                reason = f"ended with status {self.exit_status}"
            raise Unavailable(f"the server {reason}; {self._tail()}")
        return event

    def wait_until_available(
        self, name: str, version: int | None = None, timeout_seconds: float = 120
    ) -> None:
        """Waits until `version` is AVAILABLE; if `version` is None, until any version is.

        Raises Unavailable, with the last status and the end of the log, at the timeout or if the
        process ends first.
        """
        deadline_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        with Client(self.target, tls=self._tls) as client:
            while not _is_available(statuses := _statuses(client, name), version):
                if self._clock.now_ns() > deadline_ns or self._wait_for_end(_STATUS_POLL_SECONDS):
                    raise Unavailable(
                        f"{name} version {version or 'any'} is not available after "
                        f"{timeout_seconds} s: {statuses}; {self._tail()}"
                    )

    def stop(self) -> None:
        """Ends the process with SIGTERM and waits for its end. Kills it at the timeout.

        Does nothing after an earlier `stop`. Raises Unavailable, with the end of the log, if the process had
        died before, ends with another status than 0, or has to be killed.
        """
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        had_died = self._process.poll() is not None
        self._process.terminate()
        in_time = self._wait_for_end(self._stop_timeout_seconds)
        self.kill()
        status = self._process.returncode
        if had_died:
            raise Unavailable(f"the server had died with status {status}; {self._tail()}")
        if not in_time:
            raise Unavailable(
                f"the server did not stop in {self._stop_timeout_seconds} s and was killed; "
                f"{self._tail()}"
            )
        if status != 0:
            raise Unavailable(f"the server stopped with status {status}; {self._tail()}")
        if self._is_log_temporary:
            self.log_path.unlink()

    def kill(self) -> None:
        """Ends the process at once, if it was started, and closes its pipes. Raises nothing."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._started_log().join()

    def _wait_for_end(self, timeout_seconds: float) -> bool:
        """Waits for the process's end; False at the timeout."""
        try:
            self._running_process().wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise FailedPrecondition("ModelServer is not started")
        return self._process

    def _started_log(self) -> LogReader:
        if self._log is None:
            raise FailedPrecondition("ModelServer is not started")
        return self._log

    def _tail(self) -> str:
        lines = self._started_log().tail()
        return f"the end of its log ({self.log_path}):\n" + "".join(f"  {line}\n" for line in lines)


def _arguments(
    model_name: str, base_path: str | os.PathLike[str] | None, flags: Mapping[str, object]
) -> list[str]:
    values: dict[str, object] = {"host": "127.0.0.1", "port": 0, "rest_api_port": "auto"}
    values |= {"log_format": "json", "listen_before_ready": True}
    if base_path is not None:
        values |= {"model_name": model_name, "model_base_path": _absolute(base_path)}
    values |= flags
    return [f"--{name}={text}" for name, value in values.items() for text in _flag_texts(value)]


def _absolute(base_path: str | os.PathLike[str]) -> str:
    text = os.fspath(base_path)
    return text if is_store_url(text) else os.path.abspath(text)


def _flag_texts(value: object) -> list[str]:
    """The texts of a flag's value, one for each time that the command line gives the flag."""
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _flag_texts(item)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _statuses(client: Client, name: str) -> tuple[VersionStatus, ...]:
    """The statuses of the model's versions; () if the server does not have the model yet."""
    try:
        return client.model_status(name)
    except NotFound:
        return ()
    except MillpondError as error:
        if error.is_transient:
            return ()
        raise


def _is_available(statuses: Sequence[VersionStatus], version: int | None) -> bool:
    return any(
        status.state == ServableState.AVAILABLE and version in (None, status.version)
        for status in statuses
    )
