"""`life attacks`: attacks on a server's memory and places, each on a server in a control group."""

import argparse
import http.client
import shlex
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.drive.attacked_model import export_attacked_model
from loadtest.drive.byte_attacks import BYTE_ATTACKS, GRPC, HTTP, ByteAttack, Flood
from loadtest.drive.control_group import ControlGroup, own_name
from loadtest.drive.lying_member import LyingMember, coordinator_of
from loadtest.drive.small_model import config_text
from loadtest.measure.server_pages import ServerPages
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import MillpondError, Unavailable
from serving.client import Client
from serving.server.model_server import ModelServer

_ATTACKED, _INNOCENT = "attacked", "innocent"
# The attack on the coordinator of a fleet.
_REPORT = "report"
_IN_USE = "serving_requests_under_way_bytes"
_TURN_SECONDS = 0.1
# Shorter than an attack, so that requests that wait for its end are lost.
_TIMEOUT_SECONDS = 5.0
# The time in which the server sees that the attack's connections are closed. It does not read a connection
# on which a request runs and others wait, so it sees the end of such a connection only after the request's
# 30 s.
_SETTLE_SECONDS = 90.0
# The connection that asks is counted too.
_LITTLE_BYTES = 100_000


@dataclass
class Felt:
    """The experience of a client that does no harm."""

    request_count: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    probe_ms: list[float] = field(default_factory=list)
    failed_probe_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """The figures of one attack. `left_bytes` is None if the server has ended."""

    attack: str
    sent_bytes: int
    peak_bytes: int
    left_bytes: int | None
    request_count: int
    losses: Mapping[str, int]
    probe_count: int
    failed_probe_count: int
    probe_ms_p99: float | None


class Innocent:
    """Asks a model that is not attacked, over REST and gRPC, and probes, inside `with`."""

    def __init__(self, url: str, target: str | None, clock: Clock) -> None:
        """Without a `target` it only probes."""
        self._address = urlsplit(url).netloc
        self._target = target or ""
        self._clock = clock
        self._is_over = threading.Event()
        asked = (self._ask_rest, self._ask_grpc) if target else ()
        self._threads = [
            threading.Thread(target=self._repeat, args=(turn,)) for turn in (*asked, self._probe)
        ]
        self.felt = Felt()

    def __enter__(self) -> "Innocent":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, turn: Callable[[], None]) -> None:
        while not self._is_over.wait(_TURN_SECONDS):
            turn()

    def _ask_rest(self) -> None:
        path = f"/v1/models/{_INNOCENT}:predict"
        self.felt.request_count += 1
        try:
            status = self._status("POST", path, b'{"instances": ["ab"]}')
        except (OSError, http.client.HTTPException) as error:
            self.felt.losses[f"REST {type(error).__name__}"] += 1
            return
        if status != 200:
            self.felt.losses[f"REST {status}"] += 1

    def _ask_grpc(self) -> None:
        self.felt.request_count += 1
        try:
            with Client(self._target, timeout_seconds=_TIMEOUT_SECONDS) as client:
                client.predict(_INNOCENT, {"x": np.array([b"ab"], object)})
        except MillpondError as error:
            self.felt.losses[f"gRPC {error.code.name}"] += 1

    def _probe(self) -> None:
        begin_ns = self._clock.now_ns()
        try:
            is_ok = self._status("GET", "/healthz", None) == 200
        except (OSError, http.client.HTTPException):
            is_ok = False
        self.felt.failed_probe_count += not is_ok
        self.felt.probe_ms.append(seconds_since(self._clock, begin_ns) * 1_000)

    def _status(self, method: str, path: str, body: bytes | None) -> int:
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_SECONDS)
        with closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            response.read()
            return response.status


def _add_options(parser: argparse.ArgumentParser) -> None:
    names = [*(attack.name for attack in BYTE_ATTACKS), _REPORT]
    parser.add_argument(
        "--attack",
        dest="attacks",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"one of {', '.join(names)}; may be repeated; default: all",
    )
    parser.add_argument(
        "--seconds", type=positive, default=10, metavar="S", help="of each attack; default 10"
    )
    parser.add_argument(
        "--group-mb",
        type=positive_integer,
        default=4_096,
        metavar="N",
        help="the control group's limit; default 4096",
    )
    parser.add_argument(
        "--server",
        type=shlex.split,
        default=[sys.executable, "-m", "serving"],
        metavar="CMD",
        help="the command of another Millpond, which `serve` and flags follow; default: this one",
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    attacks = [one for one in BYTE_ATTACKS if one.name in (parsed.attacks or [one.name])]
    has_report = _REPORT in (parsed.attacks or [_REPORT])
    done: list[Attacked] = []
    with TemporaryDirectory(prefix="millpond-attacks-") as name:
        directory = Path(name)
        export_attacked_model(directory / "exported")
        for attack in attacks:
            console.print(f"{attack.name} ...", highlight=False)
            done.append(_attacked(attack, directory, parsed, clock))
        if has_report:
            console.print(f"{_REPORT} ...", highlight=False)
            done.append(_attacked_coordinator(directory / _REPORT, parsed, clock))
    console.print(table_of(done, parsed.seconds))
    for one in done:
        if one.losses:
            console.print(f"{one.attack}: lost {dict(one.losses)}", markup=False, highlight=False)
    write_json(parsed.json, [asdict(one) for one in done])
    return 1 if any(one.left_bytes is None or one.losses for one in done) else 0


def _attacked(
    attack: ByteAttack, directory: Path, parsed: argparse.Namespace, clock: Clock
) -> Attacked:
    """Starts a server in a group of its own, attacks it, and returns the figures.

    Raises Unavailable if the server does not start, or if no group can be made.
    """
    base_paths = {name: directory / attack.name / name for name in (_ATTACKED, _INNOCENT)}
    for base_path in base_paths.values():
        shutil.copytree(directory / "exported", base_path / "1")
    config_path = directory / attack.name / "models.config"
    config_path.write_text(config_text(base_paths))
    with ControlGroup(own_name("attacks"), parsed.group_mb * 2**20, clock) as group:
        server = ModelServer(
            command=(*group.command, *parsed.server),
            model_config_file=config_path,
            listen_before_ready=False,
            **(attack.flags or {}),  # type: ignore[arg-type]
        )
        server.start()
        flood = Flood(attack, _ATTACKED, _addresses(server), clock)
        try:
            with Innocent(server.url, server.target, clock) as innocent:
                attack.prepare(base_paths[_ATTACKED])
                flood.run(parsed.seconds)
            left_bytes = _left_bytes(ServerPages(server.url), clock)
        finally:
            server.kill()
        return _figures(attack.name, flood.sent_bytes, group, left_bytes, innocent.felt)


def _attacked_coordinator(directory: Path, parsed: argparse.Namespace, clock: Clock) -> Attacked:
    """Runs a coordinator in a group of its own, whose member sends it too much."""
    directory.mkdir()
    with (
        ControlGroup(own_name("attacks"), parsed.group_mb * 2**20, clock) as group,
        LyingMember() as liar,
    ):
        command = (*group.command, *parsed.server)
        with coordinator_of(liar.target, command, directory) as url:
            pages, begin_ns = ServerPages(url), clock.now_ns()
            while _left_bytes(pages, clock) is None:
                if seconds_since(clock, begin_ns) > _SETTLE_SECONDS:
                    log = (directory / "coordinator.log").read_text(errors="replace")
                    raise Unavailable(f"the coordinator does not answer; its log: {log[-2_000:]}")
                pause(clock, _TURN_SECONDS)
            with Innocent(url, None, clock) as innocent:
                pause(clock, parsed.seconds)
            left_bytes = _left_bytes(pages, clock)
        return _figures(_REPORT, liar.sent_bytes, group, left_bytes, innocent.felt)


def _addresses(server: ModelServer) -> Mapping[str, tuple[str, int]]:
    addresses = {GRPC: server.target, HTTP: urlsplit(server.url).netloc}
    split = {protocol: address.rsplit(":", 1) for protocol, address in addresses.items()}
    return {protocol: (host, int(port)) for protocol, (host, port) in split.items()}


def _left_bytes(pages: ServerPages, clock: Clock) -> int | None:
    """Waits some seconds until little is counted in the budget, and returns what is counted then; None
    without an answer.
    """
    begin_ns = clock.now_ns()
    while True:
        try:
            left_bytes = int(pages.metrics().value(_IN_USE) or 0)
        except Unavailable:
            return None
        if left_bytes <= _LITTLE_BYTES or seconds_since(clock, begin_ns) > _SETTLE_SECONDS:
            return left_bytes
        pause(clock, _TURN_SECONDS)


def _figures(
    name: str, sent_bytes: int, group: ControlGroup, left_bytes: int | None, felt: Felt
) -> Attacked:
    probes = felt.probe_ms
    return Attacked(
        attack=name,
        sent_bytes=sent_bytes,
        peak_bytes=group.peak_bytes,
        left_bytes=left_bytes,
        request_count=felt.request_count,
        losses=dict(felt.losses),
        probe_count=len(probes),
        failed_probe_count=felt.failed_probe_count,
        probe_ms_p99=round(float(np.quantile(probes, 0.99)), 1) if probes else None,
    )


def table_of(done: Sequence[Attacked], seconds: float) -> Table:
    """Makes a table with a row for each attack. Pure.

    `peak` is the control group's, and `left` is what is counted in the budget at the end. `lost` are
    requests of the client that does no harm, and `p99` is the time of its probes.
    """
    names = ("sent MB", "peak MB", "left kB", "lost", "probes lost", "p99 ms")
    table = Table(f"{seconds:g} s of", *names)
    for one in done:
        left = "ended" if one.left_bytes is None else f"{one.left_bytes / 1e3:,.0f}"
        lost_count = sum(one.losses.values())
        table.add_row(
            one.attack,
            f"{one.sent_bytes / 1e6:,.2f}",
            f"{one.peak_bytes / 1e6:,.0f}",
            left,
            f"{lost_count} of {one.request_count}",
            f"{one.failed_probe_count} of {one.probe_count}",
            "-" if one.probe_ms_p99 is None else f"{one.probe_ms_p99:,.1f}",
        )
    return table


ATTACKS = Command(
    "attacks on a server's memory and places, each in a control group", _add_options, _run
)
