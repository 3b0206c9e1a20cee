"""Turns of servers that answer over HTTP: one server at a time, a round of all servers after another.

Unlike in `turns`, the servers do not run at the same time, because some of them use the cores while
they are idle.
"""

import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.generator import Generator
from loadtest.drive.peer_client import wait_for_reply, wrong_replies
from loadtest.drive.peer_environments import Peer
from loadtest.drive.rest_load import rows_body, timed_closed_loop
from loadtest.drive.shell_server import ShellServer, free_port
from loadtest.measure.outcome_figures import error_messages
from loadtest.measure.processor_time import CoreShares, with_cores_of_children
from loadtest.measure.saturation import answered_rate
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop
from loadtest.plan.plan import Outcome
from serving.base.clock import Clock, pause
from serving.base.errors import StatusCode, Unavailable

REPOSITORY = Path(__file__).parents[2]
# More than any server answers in a turn; the turn ends by the time.
_REQUEST_COUNT = 500_000
_GRPC_CHANNELS = 4
_WARM_UP_SECONDS = 1
# A peer may not end at SIGTERM (LitServe), and there is nothing to lose.
_STOP_SECONDS = 5


@dataclass(frozen=True)
class Contestant:
    """One row of the table: a shell command with {port} and {grpc_port}, and the HTTP path that
    answers; with an empty path it is asked over gRPC.
    """

    command: str
    path: str


@dataclass
class PeerMeasured:
    """The results of one contestant and load, over all rounds."""

    rates_per_second: list[float] = field(default_factory=list)
    latencies_ns: list[int] = field(default_factory=list)


@dataclass
class PeerResults:
    """The results by contestant and load; `failures` has the message of each that failed, and
    `wrong_counts` the wrong replies of the check before each turn. `cores` is the use of the cores
    in each turn.
    """

    measured: dict[tuple[str, ClosedLoop], PeerMeasured] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    wrong_counts: dict[str, int] = field(default_factory=dict)
    cores: list[CoreShares] = field(default_factory=list)


def peer_contestants(name: str, peer: Peer, python: Path, export: Path) -> Mapping[str, Contestant]:
    """Returns the rows of a peer: without batches, and with its own ones if it has some."""
    words = ["env", f"PYTHONPATH={REPOSITORY}", str(python), "-m", peer.module, str(export)]
    command = f"{shlex.join(words)} {{port}}"
    plain = {name: Contestant(command, "/predict")}
    return plain | (
        {f"{name}, batches": Contestant(f"{command} batch", "/predict")} if peer.has_batches else {}
    )


def millpond_contestants(base_path: Path) -> Mapping[str, Contestant]:
    """Returns Millpond's rows: over gRPC and by the REST API, without batches and with them."""
    words = (
        *(sys.executable, "-m", "serving", "serve", "--host=127.0.0.1"),
        *(f"--model_name={MODEL_NAME}", f"--model_base_path={base_path}"),
    )
    command = f"{shlex.join(words)} --port={{grpc_port}} --rest_api_port={{port}}"
    path = f"/v1/models/{MODEL_NAME}:predict"
    return {
        f"millpond{protocol}{batches}": Contestant(f"{command}{flag}", of_protocol)
        for protocol, of_protocol in ((" REST", path), (" gRPC", ""))
        for batches, flag in (("", ""), (", batches", " --enable_batching"))
    }


def run_peer_rounds(
    contestants: Mapping[str, Contestant],
    loops: Sequence[ClosedLoop],
    *,
    table_rows: int,
    round_count: int,
    seconds: float,
    clock: Clock,
    say: Callable[[str], None],
) -> PeerResults:
    """Measures each contestant once a round. One that fails is left out of the further rounds."""
    results = PeerResults()
    for number in range(1, round_count + 1):
        for name, contestant in contestants.items():
            if name in results.failures:
                continue
            say(f"round {number} of {round_count}: {name}")
            try:
                _take_turn(name, contestant, loops, table_rows, seconds, clock, results)
            except Unavailable as error:
                results.failures[name] = " ".join(str(error).splitlines()[:2])
                say(f"{name}: {error}")
    return results


def _take_turn(
    name: str,
    contestant: Contestant,
    loops: Sequence[ClosedLoop],
    table_rows: int,
    seconds: float,
    clock: Clock,
    results: PeerResults,
) -> None:
    port, grpc_port = free_port(), free_port()
    command = contestant.command.replace("{port}", str(port))
    command = command.replace("{grpc_port}", str(grpc_port))
    with (
        tempfile.TemporaryDirectory(prefix="millpond-peers-") as logs,
        ShellServer(name, command, grpc_port, Path(logs, "log"), clock, _STOP_SECONDS) as server,
    ):
        load: _HttpLoad | _GrpcLoad = _GrpcLoad(server, table_rows, clock)
        if contestant.path:
            url = f"http://127.0.0.1:{port}{contestant.path}"
            load = _HttpLoad(url, table_rows, server, clock)
        load.wait_until_ready()
        for loop in loops:
            wrong_count = load.warmed_up(loop)
            results.wrong_counts[name] = results.wrong_counts.get(name, 0) + wrong_count
            try:
                (rate, latencies), cores = with_cores_of_children(
                    server.process_ids(), clock, partial(load.measured, loop, seconds)
                )
            except (FileNotFoundError, ProcessLookupError):
                raise server.failure(f"one of its processes ended in its turn of {loop}") from None
            results.cores.append(cores)
            measured = results.measured.setdefault((name, loop), PeerMeasured())
            measured.rates_per_second.append(rate)
            measured.latencies_ns += latencies


class _HttpLoad:
    """Load over HTTP/1.1, by h2load: a connection for each request in flight."""

    def __init__(self, url: str, table_rows: int, server: ShellServer, clock: Clock) -> None:
        self._url = url
        self._table_rows = table_rows
        self._server = server
        self._clock = clock

    def wait_until_ready(self) -> None:
        body = rows_body(1, self._table_rows, 0)
        wait_for_reply(self._url, body, self._clock, self._server.check_running)

    def warmed_up(self, loop: ClosedLoop) -> int:
        """Checks distinct answers, puts load on the server, and returns the wrong answers."""
        wrong_count = wrong_replies(self._url, loop.rows, self._table_rows)
        self.measured(loop, _WARM_UP_SECONDS)
        return wrong_count

    def measured(self, loop: ClosedLoop, seconds: float) -> tuple[float, list[int]]:
        body = rows_body(loop.rows, self._table_rows, seed=1)
        try:
            return timed_closed_loop(self._url, body, loop.in_flight, seconds)
        except Unavailable as error:
            raise self._server.failure(str(error)) from None


class _GrpcLoad:
    """Load over gRPC, by the generator, which checks each answer."""

    def __init__(self, server: ShellServer, table_rows: int, clock: Clock) -> None:
        self._server = server
        self._table_rows = table_rows
        self._clock = clock

    def wait_until_ready(self) -> None:
        self._server.wait_until_ready(_ctr_load(1, self._table_rows).payloads[0])

    def warmed_up(self, loop: ClosedLoop) -> int:
        outcome = self._outcome(loop, _WARM_UP_SECONDS)
        return _ctr_load(loop.rows, self._table_rows).wrong_count(outcome)

    def measured(self, loop: ClosedLoop, seconds: float) -> tuple[float, list[int]]:
        outcome = self._outcome(loop, seconds)
        if messages := error_messages([outcome]):
            raise self._server.failure("; ".join(messages))
        latencies = (outcome.completed_ns - outcome.issued_ns)[outcome.codes == StatusCode.OK]
        return answered_rate(outcome), latencies.tolist()

    def _outcome(self, loop: ClosedLoop, seconds: float) -> Outcome:
        channels = min(_GRPC_CHANNELS, loop.in_flight)
        grpc_loop = ClosedLoop(loop.rows, channels, loop.in_flight)
        plan = grpc_loop.plan(_ctr_load(loop.rows, self._table_rows), _REQUEST_COUNT, seed=1)
        with Generator(plan, self._server.target) as generator:
            pause(self._clock, seconds)
            return generator.stop()


@lru_cache
def _ctr_load(rows: int, table_rows: int) -> CtrLoad:
    """Returns the same load each time, because it keeps its references."""
    return CtrLoad(MODEL_NAME, rows=rows, table_rows=table_rows, seed=1)
