"""A member of a fleet whose reports are far too long, and a coordinator that asks for them."""

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from loadtest.drive.shell_server import free_port
from serving.core.operator_api import FLEET_REPORT

_REPORT = b'{"models": [' + b"1," * 30_000_000 + b"1]}"
_STOP_SECONDS = 30


class LyingMember:
    """Answers a coordinator with a report of 60 MB inside `with`, and counts its bytes."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._server = grpc.server(
            ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)]
        )
        report: Any = grpc.unary_unary_rpc_method_handler(self._report)
        service, method = FLEET_REPORT.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: report})]
        )
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "LyingMember":
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop(None).wait()

    def _report(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del request, context
        self.sent_bytes += len(_REPORT)
        return _REPORT


@contextmanager
def coordinator_of(target: str, command: Sequence[str], directory: Path) -> Iterator[str]:
    """Runs a coordinator whose only member is `target`, and yields its URL. `command` is Millpond's."""
    listen = f"127.0.0.1:{free_port()}"
    config_path = directory / "fleet.toml"
    config_path.write_text(
        f"[coordinator]\nstate_directory = {str(directory / 'fleet')!r}\n"
        f'listen = "{listen}"\npoll_seconds = 1\n'
        f'[servers.liar]\nadmin = "{target}"\ngrpc = "{target}"\n'
    )
    with (directory / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "fleet", "start", str(config_path)], stdout=log, stderr=log
        )
    try:
        yield f"http://{listen}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
