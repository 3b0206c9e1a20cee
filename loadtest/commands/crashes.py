"""`life crashes`: a supervised server that one model crashes again and again, under load on another model.

Each round drops a new version of the model `crashing`, sends it the input that crashes the server,
and waits until the version before it answers. The clients of the model `m0` must get nothing but
answers, and UNAVAILABLE for the calls that a crash finds in flight.
"""

import argparse
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
from rich.console import Console

from loadtest.commands.options import Command, add_json_option, positive_integer
from loadtest.drive import crashing_model
from loadtest.drive.small_model import config_text, write_small_models
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import SystemClock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.server.model_server import ModelServer

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_CLIENT_COUNT = 2
_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.005


@dataclass
class Crashes:
    """The results of all rounds."""

    codes: Counter[str] = field(default_factory=Counter)
    # The time from the failure of the call that crashed the server to the first answer of each model.
    crashing_seconds: list[float] = field(default_factory=list)
    other_seconds: list[float] = field(default_factory=list)
    # Versions that were blocked although they had not crashed, and versions that had crashed and were not
    # blocked.
    wrongly_blocked_count: int = 0


class Clients:
    """Threads that ask one model until `stop`, and count the codes.

    They do not wait until the server is ready.
    """

    def __init__(self, target: str, name: str, codes: Counter[str]) -> None:
        self._target, self._name, self._codes = target, name, codes
        self._is_stopping = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(_CLIENT_COUNT)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        # Each channel has a pool of its own, and so a connection of its own.
        options = [("grpc.use_local_subchannel_pool", 1)]
        while not self._is_stopping:
            # Connects anew after a failure, because gRPC's channel may write the next call to the
            # connection that was reset a moment ago, and such a call never reaches a server.
            with grpc.insecure_channel(self._target, options) as channel:
                self._ask_until_failure(channel)
            pause(SystemClock(), _RETRY_SECONDS)

    def _ask_until_failure(self, channel: grpc.Channel) -> None:
        code = "OK"
        while code == "OK" and not self._is_stopping:
            code = ask(channel, self._name, 1.0)
            with self._lock:
                self._codes[code] += 1


def ask(channel: grpc.Channel, name: str, x: float) -> str:
    """Sends one request; returns the name of its code."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.inputs["x"].CopyFrom(to_tensor_proto(np.array([x], np.float32)))
    predict: Any = channel.unary_unary(
        _PREDICT, request_serializer=predict_pb2.PredictRequest.SerializeToString
    )
    try:
        predict(request, timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        failed: Any = error
        return str(failed.code().name)
    return "OK"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--crashes", type=positive_integer, default=100, help="default 100")
    parser.add_argument(
        "--mb", type=positive_integer, default=1, help="parameters of the model that crashes, in MB"
    )
    parser.add_argument(
        "--pause-seconds",
        type=float,
        default=0.0,
        help="between an answer after a crash and the next version; from 5 on a standby serves after "
        "each crash; default 0",
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, crashes = Console(), Crashes()
    with TemporaryDirectory(prefix="millpond-crashes-") as text:
        directory = Path(text)
        library = crashing_model.build_crash_op(directory)
        export = crashing_model.export_crashing(directory / "export", library, mb=parsed.mb)
        paths = {**write_small_models(directory, 1), "crashing": directory / "crashing"}
        paths["crashing"].mkdir()
        crashing_model.link_version(export, paths["crashing"], 1)
        config = directory / "models.config"
        config.write_text(config_text(paths))
        with ModelServer(
            model_config_file=config,
            supervise=True,
            op_library=library,
            log_path=directory / "log",
            listen_before_ready=False,
            file_system_poll_wait_seconds=0.05,
            start_timeout_seconds=_TIMEOUT_SECONDS,
        ) as server:
            _crash_again_and_again(server, export, paths, parsed, crashes, console)
    report = crashes_report(crashes, parsed.crashes, parsed.mb)
    console.print(report_line(report))
    write_json(parsed.json, report)
    return 1 if report["lost_count"] or crashes.wrongly_blocked_count else 0


def _crash_again_and_again(
    server: ModelServer,
    export: Path,
    paths: Mapping[str, Path],
    parsed: argparse.Namespace,
    crashes: Crashes,
    console: Console,
) -> None:
    other = next(name for name in paths if name != "crashing")
    versions = range(2, parsed.crashes + 2)
    clients = Clients(server.target, other, crashes.codes)
    try:
        for version in versions:
            pause(SystemClock(), parsed.pause_seconds)
            crashing_model.link_version(export, paths["crashing"], version)
            server.wait_until_available("crashing", version)
            _crash(server, other, crashes)
            if (version - 1) % 10 == 0:
                console.print(f"{version - 1} crashes: {dict(crashes.codes)}")
    finally:
        clients.stop()
    crashed = [event["version"] for event in server.events() if event["event"] == "version_crashed"]
    crashes.wrongly_blocked_count = len(set(crashed) ^ set(versions))


def _crash(server: ModelServer, other: str, crashes: Crashes) -> None:
    clock = SystemClock()
    with grpc.insecure_channel(server.target) as channel:
        if ask(channel, "crashing", crashing_model.SEGV) != "UNAVAILABLE":
            raise Unavailable("the magic input did not crash the server; see its log")
    start_ns = clock.now_ns()
    with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        for name, seconds in (
            (other, crashes.other_seconds),
            ("crashing", crashes.crashing_seconds),
        ):
            while ask(channel, name, 1.0) != "OK":
                if seconds_since(clock, start_ns) > _TIMEOUT_SECONDS:
                    raise Unavailable(f"{name} does not answer {_TIMEOUT_SECONDS} s after a crash")
                pause(clock, _RETRY_SECONDS)
            seconds.append(seconds_since(clock, start_ns))


def crashes_report(crashes: Crashes, crash_count: int, mb: int) -> Mapping[str, Any]:
    """The counts and times.

    A call of the other model is lost if it gets neither an answer nor UNAVAILABLE. If more calls get
    UNAVAILABLE than were in flight, the rest is lost too.
    """
    lost = sum(n for code, n in crashes.codes.items() if code not in ("OK", "UNAVAILABLE"))
    in_flight_max = _CLIENT_COUNT * crash_count
    lost += max(0, crashes.codes["UNAVAILABLE"] - in_flight_max)
    return {
        "crashes": crash_count,
        "mb": mb,
        "codes": dict(crashes.codes),
        "lost_count": lost,
        "wrongly_blocked_count": crashes.wrongly_blocked_count,
        "other_seconds": _spread(crashes.other_seconds),
        "crashing_seconds": _spread(crashes.crashing_seconds),
        "machine": machine(),
    }


def _spread(seconds: Sequence[float]) -> Mapping[str, float]:
    """The median and the highest value, in seconds."""
    return {"median": round(float(np.median(seconds)), 3), "max": round(max(seconds), 3)}


def report_line(report: Mapping[str, Any]) -> str:
    """The report as a line for people."""
    crashing, other = report["crashing_seconds"], report["other_seconds"]
    return (
        f"{report['crashes']} crashes: {report['codes']}; {report['lost_count']} calls lost, "
        f"{report['wrongly_blocked_count']} versions wrongly blocked or not blocked; from a crash to "
        f"the first answer of the other model {other['median']} s (at most {other['max']}), of the "
        f"model of {report['mb']} MB that crashed {crashing['median']} s (at most {crashing['max']})"
    )


CRASHES = Command(
    "a supervised server that a model crashes: what the clients of another model get",
    _add_options,
    _run,
)
